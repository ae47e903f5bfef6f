"""Finds what grammars allow on threads of its own, while the model computes.

A matcher belongs to one thread at a time: the engine's between two steps, a worker's from `begin` to `take`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from tie.afm_runtime.decoding.grammar import GrammarFault, Matcher
from tie.afm_runtime.forwarding import Mask

WORKERS: Final = 2
ROW_BUDGET_S: Final = 0.25
"""Of one row in one step. The matcher's fuel ends its work long before; this is for what fuel does not count."""


@dataclass(frozen=True, slots=True, repr=False)
class Found:
    """Masks of one step, a row each; None where no grammar rules. `faulty` rows exceeded a budget: no token is safe."""

    masks: Sequence[Mask | None]
    faulty: frozenset[int] = frozenset()
    seconds: Sequence[float] = ()
    """What each grammar took."""


class Masking:
    """`begin` and `take` alternate, on the engine's thread."""

    def __init__(self) -> None:
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="masks")
        self._rows = 0
        self._parts: list[Future[list[tuple[int, Mask | None, float]]]] = []

    def begin(self, matchers: Sequence[Matcher | None]) -> None:
        """One a row of the step; None where no grammar rules, or no token is due."""
        self._rows = len(matchers)
        ruled = [(row, matcher) for row, matcher in enumerate(matchers) if matcher is not None]
        self._parts = [
            self._workers.submit(_find, part) for part in (ruled[worker::WORKERS] for worker in range(WORKERS)) if part
        ]

    def take(self) -> Found:
        """Waits for what is not found yet."""
        masks: list[Mask | None] = [None] * self._rows
        if not self._parts:
            return Found(masks)
        faulty, seconds = set(), []
        for part in self._parts:
            for row, mask, elapsed in part.result():
                masks[row] = mask
                seconds.append(elapsed)
                if mask is None:
                    faulty.add(row)
        self._parts = []
        return Found(masks, frozenset(faulty), seconds)

    def close(self) -> None:
        self._workers.shutdown()


def _find(rows: Sequence[tuple[int, Matcher]]) -> list[tuple[int, Mask | None, float]]:
    found: list[tuple[int, Mask | None, float]] = []
    for row, matcher in rows:
        begin = time.perf_counter()
        try:
            mask: Mask | None = matcher.allowed()
        except GrammarFault:
            mask = None
        elapsed = time.perf_counter() - begin
        found.append((row, mask if elapsed <= ROW_BUDGET_S else None, elapsed))
    return found
