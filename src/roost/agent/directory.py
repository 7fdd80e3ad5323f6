"""The agent's directory: one agent at a time, its identity, credential and last desired state."""

import uuid
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from roost.domain.replica import Desired
from roost.errors import Unusable
from roost.files import Lock, write_private


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What joining bought: DIR/agent/credential.json."""

    server: str
    fleet: str
    node: str
    credential: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obeyed:
    """DIR/agent/desired.json: the last desired state and, in it, the highest epoch obeyed."""

    desired: Desired


class Directory:
    """`DIR/agent`; opening it makes what is missing."""

    def __init__(self, root: Path) -> None:
        self.path = root / "agent"
        self.shards = self.path / "shards"
        self.logs = self.path / "logs"
        self._lock: Lock | None = None
        try:
            for directory in (root, self.path, self.shards, self.logs):
                directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as cause:
            raise Unusable(f"cannot make the directory {self.path}: {cause.strerror}") from cause

    def lock(self) -> None:
        """Only one agent works on a directory; the kernel gives it back, however the agent ends."""
        self._lock = Lock(
            self.path / "lock",
            what=f"another agent works on {self.path}",
            hint="stop it first, or give this one another --dir",
        )

    def identity(self) -> str:
        """Made once; whoever has it is this node, whatever its name and address."""
        path = self.path / "identity"
        try:
            known = path.read_text().strip()
        except FileNotFoundError:
            known = ""
        if known:
            return known
        made = uuid.uuid4().hex
        write_private(path, f"{made}\n".encode())
        return made

    def credential(self) -> Credential | None:
        """`None`: not joined yet."""
        path = self.path / "credential.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Credential)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as cause:
            raise Unusable(f"{path} cannot be read: {cause}", hint="join again") from cause

    def keep_credential(self, credential: Credential) -> None:
        """Keep what joining bought."""
        write_private(self.path / "credential.json", msgspec.json.encode(credential))

    def desired(self) -> Desired | None:
        """The last desired state obeyed; `None`: none yet."""
        path = self.path / "desired.json"
        try:
            return msgspec.json.decode(path.read_bytes(), type=Obeyed).desired
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as cause:
            raise Unusable(
                f"{path} cannot be read: {cause}", hint=f"move it away: mv {path} {path}.bad"
            ) from cause

    def forget_desired(self) -> None:
        """The next agent process starts with none."""
        (self.path / "desired.json").unlink(missing_ok=True)

    def keep_desired(self, desired: Desired) -> None:
        """Keep it before obeying it."""
        write_private(self.path / "desired.json", msgspec.json.encode(Obeyed(desired=desired)))
