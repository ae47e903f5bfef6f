"""A deadline that is moved while things go well, for calls whose library only knows a deadline for the whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Watchdog:
    """Calls `on_expiry` once, on a thread of its own, when the deadline passes; `reason` then says why."""

    def __init__(self, on_expiry: Callable[[], None], seconds: float, reason: str) -> None:
        self._on_expiry = on_expiry
        self._changed = threading.Event()
        self._deadline = time.monotonic() + seconds
        self._planned_reason = reason
        self._is_stopped = False
        self.reason = ""
        threading.Thread(target=self._watch, name="answer-deadline", daemon=True).start()

    def move(self, seconds: float, reason: str | None = None) -> None:
        """From now on. Only a deadline that comes sooner wakes the thread."""
        deadline, previous = time.monotonic() + seconds, self._deadline
        self._deadline = deadline
        self._planned_reason = reason or self._planned_reason
        if deadline < previous:
            self._changed.set()

    def stop(self) -> None:
        self._is_stopped = True
        self._changed.set()

    def _watch(self) -> None:
        while not self._is_stopped:
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                self.reason = self._planned_reason
                self._on_expiry()
                return
            self._changed.wait(left_s)
            self._changed.clear()
