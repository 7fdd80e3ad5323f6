"""The cards of this machine: none where there is clearly no driver, else not known yet."""

from pathlib import Path

from roost.domain.gpu import Gpu


def read(root: Path) -> tuple[tuple[Gpu, ...] | None, list[str]]:
    """An empty tuple is "none"; `None` is "not known", with the reason."""
    signs = [root / "proc/driver/nvidia", root / "dev/kfd", *sorted(root.glob("dev/nvidia*"))]
    there = [sign for sign in signs if sign.exists()]
    if not there:
        return (), []
    seen = "/" + str(there[0].relative_to(root))
    return None, [f"GPUs are not known: {seen} is there, and reading GPUs comes later"]
