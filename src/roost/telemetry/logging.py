"""How every process logs: events as lines on stderr, for people on a terminal, else as JSON."""

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, Final, Literal

import structlog

LEVELS: Final = ("debug", "info", "warning", "error")
Style = Literal["auto", "console", "json"]

_SECRET: Final = frozenset(
    {"authorization", "credential", "key", "password", "prompt", "secret", "token"}
)
_NOISY: Final = ("alembic", "httpcore2", "httpx2", "asyncio", "aiosqlite", "uvicorn")


def log_to_stderr(*, level: str = "info", style: Style = "auto") -> None:
    """Set this process's logging up; whatever libraries log joins in from warnings on."""
    number = getattr(logging, level.upper())
    console = style == "console" or (style == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _without_secrets,
            *([] if console else [structlog.processors.format_exc_info]),
            structlog.dev.ConsoleRenderer() if console else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=number, handlers=[_Forward()], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))


def _without_secrets(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A last line of defence: nothing under such a name is ever written."""
    for name in _SECRET & event.keys():
        event[name] = "(hidden)"
    return event


class _Forward(logging.Handler):
    """What libraries log, through the same lines."""

    def emit(self, record: logging.LogRecord) -> None:
        """Pass one record on."""
        log = structlog.get_logger(record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info or None)
