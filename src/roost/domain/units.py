"""Bytes as people read them: GB is 10^9; what is there is rounded down, what is needed up."""

from typing import Final, NewType

Bytes = NewType("Bytes", int)

GB: Final = 10**9


def has_gb(size: int) -> str:
    """What is there, in GB with one decimal at most, rounded down: 23.96 GB reads `23.9`."""
    return _tenths(size * 10 // GB)


def needs_gb(size: int) -> str:
    """What is asked for, in GB with one decimal at most, rounded up: 23.96 GB reads `24`."""
    return _tenths(-(-size * 10 // GB))


def _tenths(tenths: int) -> str:
    sign = "-" if tenths < 0 else ""
    whole, part = divmod(abs(tenths), 10)
    return f"{sign}{whole}.{part}" if part else f"{sign}{whole}"
