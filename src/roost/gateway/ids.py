"""Which id a request goes by in logs, answers and at its engine: the client's own, or a new one."""

import itertools
import os
import re
from typing import Final

_PLAIN: Final = re.compile(rb"[A-Za-z0-9._:/+=-]{1,128}")
_PREFIX: Final = os.urandom(6).hex().encode()
"""No other process hands out the same."""

_numbers: Final = itertools.count(1)


def id_for(given: bytes | None) -> bytes:
    """The one given, if it is fit to be printed; else one that nobody else has."""
    if given is not None and _PLAIN.fullmatch(given):
        return given
    return b"req-%b-%x" % (_PREFIX, next(_numbers))
