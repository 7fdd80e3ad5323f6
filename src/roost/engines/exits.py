"""Why a process ended, as a sentence: its exit status, and the line of its log that says most."""

import re
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from roost.engines.adapter import Exit
from roost.reconcile.engine_life import Ended

EVIDENCE_CHARS: Final = 300

_SIGNALS: Final = {
    signal.SIGILL: "this build uses instructions that this CPU does not have",
    signal.SIGKILL: "somebody ended it, or the kernel did for want of memory",
    signal.SIGSEGV: "it crashed",
    signal.SIGBUS: "it crashed; a model file that shrank or a full disk does this",
    signal.SIGABRT: "it gave itself up",
    signal.SIGTERM: "somebody ended it",
    signal.SIGINT: "somebody ended it",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A line that an engine writes when it fails, and what that means to people."""

    pattern: re.Pattern[str]
    sentence: Callable[[re.Match[str]], str]
    port_taken: bool = False
    status: int | None = None
    """It means that only with this exit status; `None`: with each."""


def ended_by(
    exit_: Exit,
    rules: Iterable[Rule],
    *,
    key: str,
    clean: Callable[[str], str],
    ends_itself: re.Pattern[str] | None = None,
) -> Ended:
    """By the first rule that bites; else by the signal; else by the last line that isn't empty.

    An engine that a signal ended has old warnings in its log, which say nothing of its end; one
    that aborted may have said why, and so may one that writes `ends_itself` and kills itself. The
    engine's `key` is in no cause; `clean` takes its own prefix (time, level) off a line.
    """
    status = exit_.status
    log = exit_.log.replace(key, "***") if key else exit_.log
    lines = [printable(clean(line)).strip() for line in log.splitlines()]
    itself = (
        status == -signal.SIGKILL
        and ends_itself is not None
        and any(ends_itself.search(line) for line in lines)
    )
    how = "ended itself by SIGKILL" if itself else describe_status(status)
    if itself or status is None or status >= 0 or status == -signal.SIGABRT:
        for rule in rules:
            if rule.status is not None and rule.status != status:
                continue
            for line in lines:
                if found := rule.pattern.search(line):
                    said = shortened(rule.sentence(found))
                    how = "exit status 0" if rule.status == 0 else how
                    return Ended(cause=f"{how}: {said}", port_taken=rule.port_taken)
    if status is not None and status < 0 and not itself:
        return Ended(cause=how)
    last = next((line for line in reversed(lines) if line), None)
    if last is None:
        return Ended(cause=f"{how}, and wrote nothing")
    return Ended(cause=f"{how}: {shortened(last)}")


def describe_status(status: int | None) -> str:
    """`exit status 1`, `killed by SIGILL: …`."""
    if status is None:
        return "ended, exit status not known (an earlier agent had started it)"
    if status == 0:
        return "ended by itself with exit status 0"
    if status > 0:
        return f"exit status {status}"
    try:
        which = signal.Signals(-status)
    except ValueError:
        return f"killed by signal {-status}"
    meaning = _SIGNALS.get(which)
    return f"killed by {which.name}" + (f": {meaning}" if meaning else "")


def printable(text: str) -> str:
    """Without control characters: a log line must not steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def shortened(text: str) -> str:
    """At most `EVIDENCE_CHARS` of it."""
    return text if len(text) <= EVIDENCE_CHARS else text[: EVIDENCE_CHARS - 1] + "…"
