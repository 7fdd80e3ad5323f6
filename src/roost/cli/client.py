"""The management API as commands speak it: where the server is, what opens it, how it says no.

The standard library's HTTP client, because `roost ctl nodes` is to take 150 ms: importing it takes
30 ms, httpx2 takes 140.
"""

import http.client
import json
import os
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

from roost import errors
from roost.errors import Conflict, NotFound, Refused, RoostError, Unavailable, Unreachable, Unusable

TIMEOUT_S: Final = 30.0
_JSON: Final = "application/json"
_PROBLEM: Final = "application/problem+json"
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def default_directory() -> Path:
    """Where state is when nobody said: /var/lib/roost for root, else below the home directory."""
    system = Path("/var/lib/roost")
    if os.geteuid() == 0 and os.access(system if system.exists() else system.parent, os.W_OK):
        return system
    state = os.environ.get("XDG_STATE_HOME")
    return (Path(state) if state else Path.home() / ".local" / "state") / "roost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server and what opens it."""

    url: str
    credential: str = field(repr=False)

    @classmethod
    def find(
        cls,
        *,
        directory: Path | None = None,
        environment: Mapping[str, str] = os.environ,
    ) -> "Endpoint":
        """By ROOST_SERVER and ROOST_CREDENTIAL_FILE, else as the server's directory says."""
        told = environment.get("ROOST_DIR")
        home = directory or (Path(told) if told else default_directory())
        written = _written_url(home)
        url = environment.get("ROOST_SERVER") or written
        if url is None:
            raise Unreachable(
                f"no server has run in {home}",
                hint="start one: roost up, or say where its state is: --dir DIR, or where it "
                "answers: ROOST_SERVER=URL ROOST_CREDENTIAL_FILE=FILE",
            )
        parts = _checked(url)
        file = environment.get("ROOST_CREDENTIAL_FILE")
        if not file and url != written and (parts.hostname or "") not in _LOOPBACK:
            # The credential of the server here is none of another machine's business.
            raise Refused(
                f"no credential was given for {url}",
                hint="name the file that holds its admin credential: ROOST_CREDENTIAL_FILE=FILE",
            )
        credential = _read_credential(Path(file) if file else home / "server" / "admin_credential")
        return cls(url=url.rstrip("/"), credential=credential)


def _written_url(home: Path) -> str | None:
    """What the server of that directory wrote; `None`: none has run."""
    file = home / "server" / "endpoint.json"
    try:
        url = json.loads(file.read_bytes())["api"]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refused(
            f"cannot read {file}: {(error.strerror or 'unreadable').lower()}",
            hint="run it as the user that runs the server",
        ) from None
    except (ValueError, KeyError, TypeError):
        raise Unusable(f"{file} does not say where the server is", hint="restart it") from None
    return str(url)


def _checked(url: str) -> Any:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.username is None
        _ = parts.port
    except ValueError:
        usable = False
    if not usable:
        raise Unusable(f"{url!r} is not a server's address", hint="as http://127.0.0.1:7400")
    return parts


def _read_credential(file: Path) -> str:
    try:
        credential = file.read_text("ascii").strip()
    except FileNotFoundError:
        raise Refused(
            f"no credential: {file} does not exist",
            hint="name the file that holds it: ROOST_CREDENTIAL_FILE=FILE",
        ) from None
    except OSError as error:
        raise Refused(
            f"cannot read {file}: {(error.strerror or 'unreadable').lower()}",
            hint="run it as the user that runs the server, or name another file: "
            "ROOST_CREDENTIAL_FILE=FILE",
        ) from None
    except UnicodeDecodeError:
        credential = ""
    if not credential or not credential.isprintable() or " " in credential:
        raise Refused(f"{file} does not hold a credential: one line of letters and digits")
    return credential


class Client:
    """Asks and tells one server."""

    def __init__(self, endpoint: Endpoint, *, timeout: float = TIMEOUT_S) -> None:
        self.endpoint = endpoint
        self.timeout = timeout

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        """What is at a path."""
        return self._ask("GET", path, query)

    def post(
        self,
        path: str,
        body: Mapping[str, object] | None = None,
        query: Mapping[str, object] | None = None,
    ) -> Any:
        """Make something, or have something done."""
        return self._ask("POST", path, query, json.dumps(body or {}).encode(), _JSON)

    def delete(self, path: str) -> Any:
        """Take something away."""
        return self._ask("DELETE", path)

    def apply(self, text: str, *, filename: str, dry_run: bool = False) -> Any:
        """Want what a catalog says; `dry_run` only says what would change."""
        query = {"filename": filename, "dry_run": str(dry_run).lower()}
        return self._ask("POST", "/api/v1/catalog", query, text.encode(), "application/yaml")

    def plan(self, text: str, *, filename: str, brief: bool = False) -> Any:
        """Where a catalog's replicas would go."""
        query = {"filename": filename, "brief": int(brief)}
        return self._ask("POST", "/api/v1/plan", query, text.encode(), "application/yaml")

    @contextmanager
    def stream(
        self, path: str, query: Mapping[str, object], *, timeout: float | None
    ) -> Iterator[Iterator[bytes]]:
        """What is at a path, as it comes."""
        with self._answer("GET", path, query, timeout=timeout) as answer:
            yield self._parts(answer)

    def _parts(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        try:
            while part := answer.read1(65536):
                yield part
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"{self.endpoint.url} broke off: {_why(error)}") from None

    def _ask(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
        kind: str | None = None,
    ) -> Any:
        with self._answer(method, path, query, body, kind, timeout=self.timeout) as answer:
            try:
                text = answer.read()
            except (OSError, http.client.HTTPException) as error:
                raise Unreachable(f"{self.endpoint.url} broke off: {_why(error)}") from None
        if not text:
            return {}
        try:
            return json.loads(text)
        except ValueError:
            raise self._stranger("its answer is not JSON") from None

    @contextmanager
    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: bytes | None = None,
        kind: str | None = None,
        *,
        timeout: float | None,
    ) -> Iterator[http.client.HTTPResponse]:
        """A good answer, not read yet; errors are raised as what they are."""
        connection = self._connection(timeout)
        target = path + (f"?{urlencode(query)}" if query else "")
        headers = {"Authorization": f"Bearer {self.endpoint.credential}", "Accept": _JSON}
        if kind:
            headers["Content-Type"] = kind
        try:
            try:
                connection.request(method, target, body=body, headers=headers)
                answer = connection.getresponse()
            except TimeoutError:
                raise Unreachable(
                    f"{self.endpoint.url} has not answered within {timeout:g} s"
                ) from None
            except ssl.SSLError as error:
                raise Unreachable(f"{self.endpoint.url}: {_why(error)}") from None
            except OSError as error:
                raise Unreachable(
                    f"no server at {self.endpoint.url}: {_why(error)}",
                    hint="is it running? roost up, or roost server",
                ) from None
            except http.client.HTTPException as error:
                raise self._stranger(_why(error)) from None
            if answer.status >= 300:
                raise self._error(answer)
            yield answer
        finally:
            connection.close()

    def _connection(self, timeout: float | None) -> http.client.HTTPConnection:
        parts = urlsplit(self.endpoint.url)
        make = (
            http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        )
        return make(parts.hostname or "", parts.port, timeout=timeout)

    def _error(self, answer: http.client.HTTPResponse) -> RoostError:
        """What a status and its problem+json say, as the error it stands for."""
        told: dict[str, Any] = {}
        try:
            body = answer.read(1_000_000)
            if _PROBLEM in (answer.getheader("Content-Type") or ""):
                told = json.loads(body)
        except (OSError, ValueError, http.client.HTTPException):
            pass
        if not isinstance(told, dict) or not told:
            if answer.status in (401, 403):
                return Refused(f"{self.endpoint.url} refuses the credential")
            return self._stranger(f"status {answer.status} without a reason")
        return problem_to_error(answer.status, told)

    def _stranger(self, what: str) -> Unreachable:
        return Unreachable(
            f"what answers at {self.endpoint.url} is not a Roost server: {what}",
            hint="is it the gateway's address, or another program's?",
        )


def problem_to_error(status: int, told: Mapping[str, Any]) -> RoostError:
    """The error that a problem+json document was made from."""
    message = str(told.get("detail") or told.get("title") or f"status {status}")
    hint = str(told["hint"]) if told.get("hint") else None
    kind = _BY_CODE.get(str(told.get("code"))) or _BY_STATUS.get(status, RoostError)
    if issubclass(kind, Unusable):
        problems = tuple(str(line) for line in told.get("problems") or ())
        return kind(message, hint=hint, problems=problems)
    if issubclass(kind, Refused) and hint is None:
        hint = "the credential is another server's or was replaced: ROOST_CREDENTIAL_FILE=FILE"
    return kind(message, hint=hint)


def _kinds(of: type[RoostError]) -> Iterator[type[RoostError]]:
    yield of
    for kind in of.__subclasses__():
        yield from _kinds(kind)


# What the server can't reach is a failure of the request, not of reaching the server.
_BY_CODE: Final = {
    kind.code: kind
    for kind in _kinds(errors.RoostError)
    if not issubclass(kind, Unreachable) and kind is not errors.UserError
}
_BY_STATUS: Final[Mapping[int, type[RoostError]]] = {
    400: Unusable,
    401: Refused,
    403: Refused,
    404: NotFound,
    409: Conflict,
    413: Unusable,
    422: Unusable,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
    507: Unavailable,
}


def _why(error: Exception) -> str:
    said = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(said).lower()


def part(name: str) -> str:
    """A name as one part of a path, whatever is in it."""
    return quote(name, safe="")
