"""
Every error Roost raises on purpose.

RoostError
  ├─ UserError        the request cannot be met; the text says what to change
  │    ├─ Unusable    an input (file, flag, field) that cannot be used
  │    ├─ NotFound    what was named does not exist
  │    ├─ Conflict    somebody else holds or changed it; read again and retry
  │    │    ├─ Copied      another machine is the node; this one has a copy of its identity
  │    │    └─ Led         another server leads the fleet, and has not let go
  │    └─ Refused     a credential is missing, wrong, expired or not good for this
  │         ├─ UnknownCredential  nobody has it here: another fleet's, or one of before a reset
  │         └─ Forbidden          it is good, and not for this
  └─ Unavailable      not now; the same request may succeed later
       ├─ Unreachable the other side does not answer
       │    └─ Lost   the connection broke in the middle
       ├─ Undecided   whether the change was made is not known yet
       ├─ Deposed     another server leads the fleet
       └─ NoSpace     a disk is full; nothing was changed

Messages are lower case, name the object and the numbers, and have no full stop at the end.
`hint` is what to do next: a command that can be pasted, or a short sentence.
"""

from typing import ClassVar


class RoostError(Exception):
    """Something Roost says on purpose; `code` is stable, `status` is HTTP's, `exit_code` is
    `ctl`'s.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(RoostError):
    """The request cannot be met as it stands."""

    code = "bad_request"
    status = 400
    exit_code = 1


class Unusable(UserError):
    """An input that can't be used; `problems` has a line each, with file, line and key if known."""

    code = "unusable_input"
    status = 422
    exit_code = 2

    def __init__(
        self, message: str, *, hint: str | None = None, problems: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint)
        self.problems = problems


class NotFound(UserError):
    """What was named does not exist."""

    code = "not_found"
    status = 404
    exit_code = 3


class Conflict(UserError):
    """Somebody else holds it, or changed it first."""

    code = "conflict"
    status = 409


class Copied(Conflict):
    """Another machine is the node, and reports; this one has a copy of its identity."""

    code = "copied_identity"


class Led(Conflict):
    """`holder` leads the fleet, until it lets go or is gone for as long as it said."""

    code = "led"

    def __init__(self, message: str, *, holder: str = "", hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.holder = holder


class Refused(UserError):
    """The credential is missing, wrong, expired, or not good for this."""

    code = "refused"
    status = 401
    exit_code = 7


class UnknownCredential(Refused):
    """Nobody has this credential here: it is another fleet's, or one of before a reset."""

    code = "unknown_credential"


class Forbidden(Refused):
    """The credential is good, and not for this."""

    code = "forbidden"
    status = 403


class Unavailable(RoostError):
    """Not now; the same request may succeed later."""

    code = "unavailable"
    status = 503


class Unreachable(Unavailable):
    """The other side does not answer."""

    code = "unreachable"
    exit_code = 5


class Lost(Unreachable):
    """The connection broke in the middle; `committing`: of a commit, which may have been made."""

    def __init__(self, message: str, *, committing: bool = False, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.committing = committing


class Undecided(Unavailable):
    """Whether the change was made is not known yet, and will be found out."""

    code = "undecided"

    def __init__(self, message: str, *, commit: str = "", hint: str | None = None) -> None:
        """`commit`: the mark by which the store finds out."""
        super().__init__(message, hint=hint)
        self.commit = commit


class Deposed(Unavailable):
    """Another server leads the fleet; this one changes nothing any more."""

    code = "deposed"


class NoSpace(Unavailable):
    """A disk is full; nothing was changed."""

    code = "no_space"
    status = 507
