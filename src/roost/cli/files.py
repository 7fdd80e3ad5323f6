"""A file an operator named, or standard input, as text."""

import sys
from pathlib import Path

from roost.errors import Unusable


def read_text(file: str) -> tuple[str, str]:
    """The text and what to call it in sentences; `-` is standard input."""
    name = "<stdin>" if file == "-" else file
    try:
        found = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        return found.decode("utf-8-sig"), name
    except OSError as error:
        raise Unusable(f"cannot read {name}: {(error.strerror or 'unreadable').lower()}") from None
    except UnicodeDecodeError as error:
        raise Unusable(f"{name} is not UTF-8 text: byte {error.start} is not part of any") from None
    except ValueError:
        raise Unusable(f"{file!r} is not a file's name") from None
