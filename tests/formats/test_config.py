"""`roost.toml`: every key, every kind of mistake, and which file wins."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roost.domain.profile import Engine, MetricNames
from roost.errors import Unusable
from roost.formats import config

HERE = Path("/etc/roost/roost.toml")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "agent-config.md"


def said(text: str) -> dict[str, object]:
    return config.parse_agent(text, path=HERE)


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(Unusable) as caught:
        said(text)
    return caught.value.problems or (caught.value.message,)


def test_nothing_said_sets_nothing() -> None:
    assert said("") == {}
    assert said("[agent]\n") == {}


def test_fabrics_and_labels_are_tables_and_become_what_flags_say() -> None:
    found = said(
        '[agent]\ngraphics_take_cards = true\nlabels = {pool = "code"}\n'
        '[agent.fabrics]\nib0 = ["mlx5_*", "mlx4_0"]\nroce = "bnxt_re0"\n'
    )
    assert found == {
        "graphics_take_cards": True,
        "labels": ("pool=code",),
        "fabrics": ("ib0=mlx5_*,mlx4_0", "roce=bnxt_re0"),
    }


def test_relative_paths_start_at_the_file() -> None:
    found = said('[agent]\nmodel_dirs = ["/models", "own"]\ntoken_file = "token"\n')
    assert found == {
        "model_dirs": ("/models", "/etc/roost/own"),
        "token_file": "/etc/roost/token",
    }


def test_a_path_may_begin_with_a_home() -> None:
    found = said('[agent]\nmodel_dirs = ["~/models", "~root/x", "a~b"]\ntoken_file = "~"\n')
    home = Path.home()
    root = Path("~root").expanduser()
    assert found == {
        "model_dirs": (str(home / "models"), str(root / "x"), "/etc/roost/a~b"),
        "token_file": str(home),
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[agent]\nfabrik = {}\n", "[agent]: unknown key fabrik; did you mean fabrics?"),
        ("[agent]\nmodel-dirs = []\n", "[agent]: unknown key model-dirs; did you mean model_dirs?"),
        ("[agnet]\n", "unknown section [agnet]; did you mean agent?"),
        ("[gateway]\n", "unknown section [gateway]; known: agent, metrics"),
        ('server = "http://s:7400"\n', "unknown server; known: agent, metrics"),
        ("agent = 1\n", "agent must be a section, [agent]"),
        (
            '[agent]\njoin = "rjt-1"\n',
            "[agent]: a token is not kept here: write it to a file and say token_file",
        ),
        (
            '[agent]\ngraphics_take_cards = "yes"\n',
            '[agent] graphics_take_cards must be true or false, not "yes"',
        ),
        ("[agent]\nname = 7\n", "[agent] name must be a text in quotes, not 7"),
        ("[agent]\nserver = ''\n", '[agent] server must be a text in quotes, not ""'),
        ("[agent]\ntoken_file = []\n", "[agent] token_file must be a path in quotes, not a list"),
        (
            '[agent]\ntoken_file = "~nobody-of-this-name/token"\n',
            (
                "[agent] token_file must be a path of somebody who has a home here, "
                'not "~nobody-of-this-name/token"'
            ),
        ),
        (
            '[agent]\nmodel_dirs = "/models"\n',
            '[agent] model_dirs must be a list of paths, ["/models"], not "/models"',
        ),
        (
            "[agent]\nlabels = {ram = 32}\n",
            "[agent] labels must be texts in quotes by names without =: ram is 32",
        ),
        (
            "[agent]\nfabrics = {ib0 = []}\n",
            "[agent] fabrics must be lists of adapters, names or globs, in quotes: ib0 is a list",
        ),
        (
            '[agent]\nfabrics = ["ib0"]\n',
            '[agent] fabrics must be a table, {ib0 = ["mlx5_*"]}, not a list',
        ),
    ],
)
def test_a_mistake_is_named_with_what_to_write(text: str, problem: str) -> None:
    assert problems(text) == (f"{HERE}: {problem}",)


def test_all_mistakes_are_named_at_once() -> None:
    assert len(problems("[agent]\nname = 1\nhost = 2\n[x]\n")) == 3


def test_what_is_no_toml_is_named_with_its_line() -> None:
    assert problems("[agent]\nname = \n") == (
        f"{HERE} is not TOML: invalid value (at line 2, column 8)",
    )


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(Unusable):
        assert said(text) == {}


def test_the_later_file_wins_key_by_key_and_none_need_be_there(tmp_path: Path) -> None:
    system, own = tmp_path / "system.toml", tmp_path / "own.toml"
    assert config.read_agent(system, own) == {}
    system.write_text('[agent]\nname = "a"\nhost = "10.0.0.1"\n')
    own.write_text('[agent]\nname = "b"\n')
    assert config.read_agent(system, own) == {"name": "b", "host": "10.0.0.1"}
    assert config.read_agent(own / "no-folder") == {}


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="cannot be read: is a directory"):
        config.read_agent(tmp_path)
    file = tmp_path / "roost.toml"
    file.write_bytes(b"\xff")
    with pytest.raises(Unusable, match=r"roost\.toml is not UTF-8"):
        config.read_agent(file)
    file.write_bytes(b"#" * (config.MOST_BYTES + 1))
    with pytest.raises(Unusable, match="is longer than 1000000 bytes"):
        config.read_agent(file)


def test_the_page_shows_every_key_and_its_example_is_read() -> None:
    page = PAGE.read_text()
    example = page.split("```toml\n")[1].split("```")[0]
    assert len(said(example)) == 7
    assert [key for key in config.KEYS if f"| `{key}` |" not in page] == []


def metrics(text: str) -> dict[Engine, MetricNames]:
    return config.parse_metrics(text, path=HERE)


def test_the_names_of_engines_metrics_are_read_by_engine() -> None:
    text = '[metrics.vllm]\nrunning = ["a", "b"]\n[metrics."llama.cpp"]\npath = "/m"\n'
    assert metrics(text) == {
        Engine.VLLM: MetricNames(running=("a", "b")),
        Engine.LLAMA_CPP: MetricNames(path="/m"),
    }
    assert metrics('[agent]\nname = "a"\n') == {}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("metrics = 3", "metrics must be a section, [metrics]"),
        ("[metrics]\nvllm = 3", "[metrics] vllm must be a section, [metrics.vllm]"),
        ("[metrics.vlm]", "unknown engine vlm; did you mean vllm?"),
        ("[metrics.vllm]\nruning = []", "unknown key runing; did you mean running?"),
        ("[metrics.vllm]\nrunning = 'a'", "running must be a list of names"),
        ("[metrics.vllm]\nrunning = ['']", "running must be a list of names"),
        ("[metrics.vllm]\npath = 'metrics'", "path must be a path that begins with /"),
    ],
)
def test_what_is_no_mapping_of_metrics_is_named(text: str, problem: str) -> None:
    with pytest.raises(Unusable) as refused:
        metrics(text)
    assert problem in refused.value.message


def test_a_later_file_wins_engine_by_engine(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text('[metrics.vllm]\nrunning = ["a"]\n[metrics.sglang]\nrunning = ["b"]\n')
    two.write_text('[metrics.vllm]\nrunning = ["c"]\n')
    assert config.read_metrics(one, two, tmp_path / "none") == {
        Engine.VLLM: MetricNames(running=("c",)),
        Engine.SGLANG: MetricNames(running=("b",)),
    }
