"""Requests that wait to be admitted, in two lines: interactive ones, and those of the background.

Whoever has a turn and does not fit yet is waited for, so that small requests never overtake large ones for ever. The
background has a turn when nobody interactive waits, and after INTERACTIVE_TURNS of them, so that it never starves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Final

from tie.afm_runtime.sequence import Request

INTERACTIVE_TURNS: Final = 8
"""Admissions in a row while the background waits too."""


class Waiting:
    def __init__(self) -> None:
        self._interactive: deque[Request] = deque()
        self._background: deque[Request] = deque()
        self._turns = 0

    def __len__(self) -> int:
        return len(self._interactive) + len(self._background)

    def __iter__(self) -> Iterator[Request]:
        yield from self._interactive
        yield from self._background

    def __contains__(self, request: Request) -> bool:
        return request in self._line(request)

    @property
    def background(self) -> int:
        return len(self._background)

    def append(self, request: Request) -> None:
        self._line(request).append(request)

    def put_back(self, request: Request) -> None:
        """At the head of its line: it was preempted."""
        self._line(request).appendleft(request)

    def remove(self, request: Request) -> None:
        self._line(request).remove(request)

    def next(self) -> Request | None:
        """Whose turn it is."""
        line = self._next_line()
        return line[0] if line else None

    def take(self) -> Request:
        """Takes out whose turn it is."""
        line = self._next_line()
        self._turns = 0 if line is self._background else self._turns + 1
        return line.popleft()

    def _next_line(self) -> deque[Request]:
        if self._background and (not self._interactive or self._turns >= INTERACTIVE_TURNS):
            return self._background
        return self._interactive

    def _line(self, request: Request) -> deque[Request]:
        return self._background if request.is_background else self._interactive
