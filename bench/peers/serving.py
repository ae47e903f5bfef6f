"""The worker's side: a session of one engine answers JSON lines on the standard streams until they end.

Whatever the engine's library prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

FIRST_TOKEN = 100
"""Token ids are made up, the same for all engines: what a token is costs no engine anything."""


class Session(Protocol):
    """One model, loaded with a number of threads."""

    def prefill(self, tokens: int) -> float:
        """Seconds for a prompt and its first token, in an empty cache."""

    def begin(self, sequences: int, context: int, steps: int) -> None:
        """Fills the cache with `sequences` prompts of `context` tokens, with room for `steps` more."""

    def decode(self, steps: int) -> float:
        """Seconds in which each sequence goes on by `steps` tokens, chosen greedily."""


def prompt(tokens: int, sequence: int = 0) -> list[int]:
    return [FIRST_TOKEN + (7 * position + 31 * sequence) % 20_000 for position in range(tokens)]


def stopwatch() -> Callable[[], float]:
    begin = time.perf_counter()
    return lambda: time.perf_counter() - begin


def serve(load: Callable[[dict[str, Any]], Session], version: str) -> None:
    """`load` gets the first line's parameters; the lines after it are calls of the session."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    lines = _lines()
    session = load(next(lines))
    print(json.dumps({"version": version}), file=answers)
    for line in lines:
        print(json.dumps({"seconds": _call(session, line.pop("do"), line)}), file=answers)


def _call(session: Session, name: str, arguments: dict[str, int]) -> float | None:
    if name == "begin":
        session.begin(**arguments)
        return None
    return session.prefill(**arguments) if name == "prefill" else session.decode(**arguments)


def _lines() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)
