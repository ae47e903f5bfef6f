"""The process never outlives its request: a moment by which it must be done, and a thread that sees to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

GRACE_S: Final = 2.0
"""Between the deadline, which the request's own waits obey, and the end by force."""
PROGRESS_AFTER_S: Final = 10.0
_TICK_S: Final = 1.0


class Deadline:
    """A moment. Immutable."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._at = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return max(0.0, self._at - time.monotonic())


class Clock:
    """Calls `on_overrun` once the deadline and its grace have passed, and `on_tick` every second until then."""

    def __init__(self, deadline: Deadline, on_tick: Callable[[], None], on_overrun: Callable[[], None]) -> None:
        self._deadline = deadline
        self._on_tick = on_tick
        self._on_overrun = on_overrun
        self._stopped = threading.Event()
        self._grace_s = GRACE_S
        self._thread = threading.Thread(target=self._run, name="deadline", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while self._deadline.left_s > 0:
            if self._stopped.wait(min(_TICK_S, self._deadline.left_s)):
                return
            self._on_tick()
        if not self._stopped.wait(self._grace_s):
            self._on_overrun()
