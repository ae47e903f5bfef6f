"""Logs as JSON lines on standard error: an event and fields whose names are on one list."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any, Final

from tie.contracts.telemetry import FIELDS


@contextlib.contextmanager
def _without_rich() -> Iterator[None]:
    """structlog loads rich wherever it is, to colour tracebacks that no daemon prints: a fifth of a process's start."""
    found = sys.modules.get("rich")
    sys.modules["rich"] = None  # type: ignore[assignment]  # None is Python's way to say: not to be had
    try:
        yield
    finally:
        del sys.modules["rich"]
        if found is not None:
            sys.modules["rich"] = found


with _without_rich():
    import structlog

LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_FRAME: Final = frozenset({"event", "level", "time", "process", "pid"})


def configure(process: str, level: str = "info") -> None:
    """Makes every logger of this process write JSON lines to standard error. Call once, first."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            functools.partial(_only_listed_fields, process),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )


def logger() -> structlog.typing.FilteringBoundLogger:
    """The logger of this process."""
    bound: structlog.typing.FilteringBoundLogger = structlog.get_logger()
    return bound


def _only_listed_fields(process: str, _: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    event.setdefault("process", process)
    event.setdefault("pid", os.getpid())
    for name in set(event) - FIELDS - _FRAME:
        del event[name]  # whatever it holds stays unwritten; a style test finds the call
    return event


def failure_place(error: BaseException) -> dict[str, str]:
    """Fields for an unexpected exception: its type and where it rose, never its text, which could hold request data."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else "unknown"
    return {"error_type": type(error).__name__, "location": place}
