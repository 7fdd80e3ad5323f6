"""A server that answers what a test says, and `roost ctl` in this process."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fake_api import CREDENTIAL, FakeApi, Ran, Run, serving
from roost.cli.main import ctl


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeApi]:
    """Serving, and found by ROOST_DIR as a server's own directory would be."""
    with serving() as fake:
        state = tmp_path / "state" / "server"
        state.mkdir(parents=True)
        (state / "endpoint.json").write_text(json.dumps({"api": fake.url}))
        (state / "admin_credential").write_text(CREDENTIAL + "\n")
        monkeypatch.setenv("ROOST_DIR", str(state.parent))
        monkeypatch.delenv("ROOST_SERVER", raising=False)
        monkeypatch.delenv("ROOST_CREDENTIAL_FILE", raising=False)
        yield fake


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`roost ctl WORDS…` in this process."""

    def run_words(*words: str) -> Ran:
        capsys.readouterr()
        status = ctl(list(words))
        out, err = capsys.readouterr()
        return Ran(status, out, err)

    return run_words
