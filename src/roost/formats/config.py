"""What does `roost.toml` say of this machine, and is all of it understood?

`[agent]` has the options of a command: what a flag says wins over it. `[metrics.ENGINE]` is for the
server.
"""

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from roost.domain.profile import Engine, MetricNames
from roost.errors import Unusable
from roost.formats.reading import nearest, quoted

MOST_BYTES: Final = 1_000_000
AGENT: Final = "agent"
METRICS: Final = "metrics"
_SECTIONS: Final = (AGENT, METRICS)


class _Wrong(ValueError):
    """What a value must be instead."""


def parse_agent(text: str, *, path: Path) -> dict[str, Any]:
    """The options of `roost agent` that the file at `path` sets, by their names in the program.

    Raises `Unusable` with all problems. Relative paths start from the file's directory.
    """
    document, problems = _document(text, path)
    section = _section(document, AGENT, path, problems)
    found: dict[str, Any] = {}
    for key, value in section.items():
        option = _OPTIONS.get(key)
        if option is None:
            problems.append(f"{path}: [agent]: {_unknown_key(key)}")
            continue
        try:
            found[option[0]] = option[1](value, path.parent)
        except _Wrong as must:
            problems.append(f"{path}: [agent] {key} must be {must}")
    _refuse(problems)
    return found


def parse_metrics(text: str, *, path: Path) -> dict[Engine, MetricNames]:
    """Under which names the file at `path` says that engines' load is found.

    Raises `Unusable` with all problems.
    """
    document, problems = _document(text, path)
    found: dict[Engine, MetricNames] = {}
    for name, said in _section(document, METRICS, path, problems).items():
        if name not in set(Engine):
            problems.append(f"{path}: [metrics]: {_unknown(f'engine {name}', name, *Engine)}")
            continue
        if not isinstance(said, dict):
            problems.append(f"{path}: [metrics] {name} must be a section, [metrics.{_bare(name)}]")
            continue
        names: dict[str, Any] = {}
        for key, value in said.items():
            make = _METRICS.get(key)
            if make is None:
                what = _unknown(f"key {key}", key, *_METRICS)
                problems.append(f"{path}: [metrics.{_bare(name)}]: {what}")
                continue
            try:
                names[key] = make(value, path.parent)
            except _Wrong as must:
                problems.append(f"{path}: [metrics.{_bare(name)}] {key} must be {must}")
        found[Engine(name)] = MetricNames(**names)
    _refuse(problems)
    return found


def _bare(name: str) -> str:
    """As TOML wants it between dots."""
    return quoted(name) if "." in name else name


def _document(text: str, path: Path) -> tuple[dict[str, Any], list[str]]:
    """With a problem for each section that nobody reads."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as cause:
        raise Unusable(f"{path} is not TOML: {_lower(str(cause))}") from None
    return document, [
        f"{path}: "
        + _unknown(f"section [{name}]" if isinstance(value, dict) else name, name, *_SECTIONS)
        for name, value in document.items()
        if name not in _SECTIONS
    ]


def _section(
    document: Mapping[str, Any], name: str, path: Path, problems: list[str]
) -> Mapping[str, Any]:
    section = document.get(name, {})
    if isinstance(section, dict):
        return section
    problems.append(f"{path}: {name} must be a section, [{name}]")
    return {}


def _refuse(problems: list[str]) -> None:
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Unusable(f"{problems[0]}{more}", problems=tuple(problems))


def read_agent(*paths: Path) -> dict[str, Any]:
    """The same from files: a later one wins, key by key; one that is not there says nothing."""
    found: dict[str, Any] = {}
    for path, text in _texts(paths):
        found.update(parse_agent(text, path=path))
    return found


def read_metrics(*paths: Path) -> dict[Engine, MetricNames]:
    """The same from files: a later one wins, engine by engine."""
    found: dict[Engine, MetricNames] = {}
    for path, text in _texts(paths):
        found.update(parse_metrics(text, path=path))
    return found


def _texts(paths: Iterable[Path]) -> Iterator[tuple[Path, str]]:
    """Of the files that are there."""
    for path in paths:
        try:
            with path.open("rb") as file:
                data = file.read(MOST_BYTES + 1)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as cause:
            raise Unusable(f"{path} cannot be read: {_lower(cause.strerror or '')}") from None
        if len(data) > MOST_BYTES:
            raise Unusable(f"{path} is longer than {MOST_BYTES} bytes, which no settings are")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise Unusable(f"{path} is not UTF-8, which TOML is") from None
        yield path, text


def _unknown_key(key: str) -> str:
    if key in {"join", "token"}:
        return "a token is not kept here: write it to a file and say token_file"
    return _unknown(f"key {key}", key, *_OPTIONS)


def _unknown(what: str, word: str, *known: str) -> str:
    near = nearest(word, known)
    return f"unknown {what}" + (f"; did you mean {near}?" if near else f"; known: {_listed(known)}")


def _listed(known: tuple[str, ...]) -> str:
    return ", ".join(known)


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _text(value: Any, _here: Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Wrong(f"a text in quotes, not {_shown(value)}")
    return value


def _path(value: Any, here: Path) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _Wrong(f"a path in quotes, not {_shown(value)}")
    try:
        return str(here / Path(value).expanduser())
    except RuntimeError as cause:
        raise _Wrong(f"a path of somebody who has a home here, not {_shown(value)}") from cause


def _paths(value: Any, here: Path) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise _Wrong(f'a list of paths, ["/models"], not {_shown(value)}')
    return tuple(_path(one, here) for one in value)


def _switch(value: Any, _here: Path) -> bool:
    if not isinstance(value, bool):
        raise _Wrong(f"true or false, not {_shown(value)}")
    return value


def _labels(value: Any, _here: Path) -> tuple[str, ...]:
    if not isinstance(value, dict):
        raise _Wrong(f'a table, {{pool = "code"}}, not {_shown(value)}')
    for key, said in value.items():
        if not isinstance(said, str) or not key.strip() or "=" in key:
            raise _Wrong(f"texts in quotes by names without =: {key} is {_shown(said)}")
    return tuple(f"{key}={said}" for key, said in value.items())


def _fabrics(value: Any, _here: Path) -> tuple[str, ...]:
    if not isinstance(value, dict):
        raise _Wrong(f'a table, {{ib0 = ["mlx5_*"]}}, not {_shown(value)}')
    found = []
    for name, said in value.items():
        adapters = [said] if isinstance(said, str) else said
        if (
            not isinstance(adapters, list)
            or not adapters
            or not all(isinstance(one, str) and one.strip() and "," not in one for one in adapters)
        ):
            raise _Wrong(f"lists of adapters, names or globs, in quotes: {name} is {_shown(said)}")
        if not name.strip() or "=" in name:
            raise _Wrong(f"lists by names without =, not {quoted(name)}")
        found.append(f"{name}={','.join(adapters)}")
    return tuple(found)


def _shown(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return quoted(value)
        case dict():
            return "a table"
        case list():
            return "a list"
        case _:
            return str(value)[:60]


def _names(value: Any, _here: Path) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(
        isinstance(one, str) and one.strip() for one in value
    ):
        raise _Wrong(f'a list of names, ["vllm:num_requests_running"], not {_shown(value)}')
    return tuple(value)


def _page(value: Any, _here: Path) -> str:
    if not isinstance(value, str) or not value.startswith("/"):
        raise _Wrong(f'a path that begins with /, "/metrics", not {_shown(value)}')
    return value


_METRICS: Final[Mapping[str, Callable[[Any, Path], Any]]] = {
    "path": _page,
    "running": _names,
    "waiting": _names,
    "kv_usage": _names,
}
_OPTIONS: Final[Mapping[str, tuple[str, Callable[[Any, Path], Any]]]] = {
    "dir": ("directory", _path),
    "server": ("server", _text),
    "token_file": ("token_file", _path),
    "name": ("name", _text),
    "model_dirs": ("model_dirs", _paths),
    "labels": ("labels", _labels),
    "allow_command": ("allow_command", _switch),
    "llama_server": ("llama_server", _path),
    "vllm": ("vllm", _path),
    "sglang": ("sglang", _path),
    "host": ("host", _text),
    "port_range": ("port_range", _text),
    "fabrics": ("fabrics", _fabrics),
    "graphics_take_cards": ("graphics_take_cards", _switch),
    "nvidia_smi_xml": ("nvidia_smi_xml", _path),
    "nvidia_smi_topo": ("nvidia_smi_topo", _path),
    "amd_smi_json": ("amd_smi_json", _path),
}
"""Key, the option's name in the program, and what its value is made to."""
KEYS: Final = tuple(_OPTIONS)
"""What `[agent]` may have."""
