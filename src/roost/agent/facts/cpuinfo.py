"""Which processor is it, and how many of it?"""

import re
from typing import Final

from roost.agent.facts.text import shown, whole

MAX_CPUS: Final = 1 << 16
MAX_MODEL: Final = 120

# What x86, Loongson and newer RISC-V, then POWER, MIPS and small ARM boards call it.
_MODEL_KEYS: Final = (b"model name", b"Model Name", b"cpu", b"cpu model", b"uarch", b"Model")

# Servers' ARM cores by (implementer, part): the kernel prints only the numbers.
_ARM: Final = {
    (0x41, 0xD07): "Cortex-A57",
    (0x41, 0xD08): "Cortex-A72",
    (0x41, 0xD0B): "Cortex-A76",
    (0x41, 0xD0C): "Neoverse-N1",
    (0x41, 0xD40): "Neoverse-V1",
    (0x41, 0xD42): "Cortex-A78AE",
    (0x41, 0xD49): "Neoverse-N2",
    (0x41, 0xD4F): "Neoverse-V2",
    (0x41, 0xD83): "Neoverse-V3AE",
    (0x41, 0xD84): "Neoverse-V3",
    (0x41, 0xD85): "Cortex-X925",
    (0x41, 0xD87): "Cortex-A725",
    (0x41, 0xD8E): "Neoverse-N3",
    (0x43, 0x0AF): "ThunderX2",
    (0x48, 0xD01): "Kunpeng-920",
    (0x4E, 0x004): "Carmel",
    (0xC0, 0xAC3): "AmpereOne",
    (0xC0, 0xAC4): "AmpereOne-A192",
}


def parse_model(data: bytes) -> str | None:
    """The name of the first processor of `/proc/cpuinfo`; `None`: it has none that is known."""
    values: dict[bytes, bytes] = {}
    parts: list[tuple[int, int]] = []
    for line in data.split(b"\n"):
        key, colon, value = line.partition(b":")
        key = key.strip()
        if not colon:
            continue
        values.setdefault(key, value.strip())
        if key == b"CPU part":
            implementer, part = _hex(values.get(b"CPU implementer")), _hex(value.strip())
            if implementer is not None and part is not None:
                parts.append((implementer, part))
    for key in _MODEL_KEYS:
        text = shown(values.get(key, b"").decode("utf-8", "replace"))
        name = " ".join(text.split())[:MAX_MODEL].strip()
        if name and not name.isdigit():
            return name
    # Big and little cores have names of their own: both, in the order of the file.
    names = dict.fromkeys(_ARM[part] for part in parts if part in _ARM)
    return "+".join(names) or None


def parse_online(data: bytes) -> int | None:
    """How many `/sys/devices/system/cpu/online` lists: `0-3,8-11` is 8."""
    count = 0
    for piece in data.strip().split(b","):
        first, dash, last = piece.partition(b"-")
        low = whole(first)
        high = whole(last) if dash else low
        if low is None or high is None or high < low:
            return None
        count += high - low + 1
    return count if 0 < count <= MAX_CPUS else None


def parse_quota(data: bytes) -> int | None:
    """Whole CPUs of a group's `cpu.max`, at least one: `250000 100000` is 2; `None`: all."""
    fields = data.split()
    if len(fields) != 2:
        return None
    quota, period = whole(fields[0]), whole(fields[1])
    if quota is None or not period:
        return None
    return max(1, quota // period)


def count_processors(data: bytes) -> int | None:
    """How many `/proc/cpuinfo` lists; `None`: none, which no machine has."""
    count = sum(1 for _ in re.finditer(rb"(?m)^processor[ \t]*:[ \t]*[0-9]{1,6}[ \t]*$", data))
    # s390 writes one line a processor: `processor 0: version = FF`.
    count = count or sum(1 for _ in re.finditer(rb"(?m)^processor [0-9]{1,6}:", data))
    return count if 0 < count <= MAX_CPUS else None


def _hex(value: bytes | None) -> int | None:
    if value is None or not re.fullmatch(rb"0x[0-9a-fA-F]{1,8}", value):
        return None
    return int(value, 16)
