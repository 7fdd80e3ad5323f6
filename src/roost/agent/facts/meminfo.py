"""How much main memory does the machine have, by `/proc/meminfo`?"""

from typing import Final

from roost.agent.facts.text import MAX_NUMBER, quoted, whole

_UNIT: Final = 1024


def parse_mem_total(data: bytes) -> tuple[int | None, tuple[str, ...]]:
    """`MemTotal:       24601596 kB` in bytes. What is free or cached is not asked: it takes nothing
    away from what the machine has.
    """
    for line in data.split(b"\n"):
        name, colon, rest = line.partition(b":")
        if not colon or name != b"MemTotal":
            continue
        fields = rest.split()
        number = whole(fields[0]) if len(fields) == 2 and fields[1] == b"kB" else None
        if number is None or number == 0 or number > MAX_NUMBER // _UNIT:
            return None, (f"meminfo: MemTotal is no number of kB: {quoted(line)}",)
        return number * _UNIT, ()
    return None, ("meminfo: has no MemTotal",)
