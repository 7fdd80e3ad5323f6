"""Every name of the server's metrics is in the reference."""

from pathlib import Path

from roost.telemetry import names

REFERENCE = Path(__file__).parents[2] / "docs/reference"


def test_the_servers_metrics_are_in_the_reference() -> None:
    text = "".join(page.read_text() for page in REFERENCE.glob("*.md"))
    told = [
        value
        for key, value in vars(names).items()
        if key.startswith(("NODE_", "FLEET_")) and isinstance(value, str)
    ]
    assert len(told) >= 6
    assert [name for name in told if f"`{name}`" not in text] == []
