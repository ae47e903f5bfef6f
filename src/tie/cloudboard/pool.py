"""Warm pairs: started before requests need them, handed out once, replaced when old or dead.

A pair is bound when a request's Parameters are in order, not at Setup: a stream that idles after its Setup holds none.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from tie.cloudboard.pair import Pair
from tie.contracts.errors import OverCapacity, TieError
from tie.servicekit import logs

_RETRY_FIRST_S: Final = 0.2
_RETRY_LAST_S: Final = 5.0
_WARMING_LIMIT: Final = max(2, os.cpu_count() or 1)
"""Pairs started at one time: more would only make each of them late."""


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Sizes and times of the pool; see CloudboardConfig."""

    pool_size: int
    max_pairs: int
    max_wait_s: float
    refill_delay_s: float


class Pool:
    """Owns every pair from its start to its end. Runs in `run`; use from one event loop."""

    def __init__(self, limits: PoolLimits, start: Callable[[], Awaitable[Pair]], on_change: Callable[[], None]) -> None:
        self._limits, self._start, self._on_change = limits, start, on_change
        self._warm: deque[Pair] = deque()
        self._bound: set[Pair] = set()
        self._waiting: deque[asyncio.Future[Pair]] = deque()
        self._warming = 0
        self._leaving: set[asyncio.Task[None]] = set()
        self._watches: dict[Pair, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._retry_s = 0.0
        self._is_proven = False
        self._short_since: float | None = None
        self._is_closed = False

    @property
    def in_flight(self) -> int:
        """Pairs that serve a request, and requests that wait for theirs."""
        return len(self._bound) + len(self._waiting)

    @property
    def warm(self) -> int:
        return len(self._warm)

    @property
    def is_able(self) -> bool:
        """Whether a request may expect a pair: one is warm, or the last start succeeded."""
        return bool(self._warm) or self._is_proven

    async def acquire(self, wait_s: float) -> Pair:
        """A pair of the caller's own, in order of arrival; `release` it. Raises OverCapacity after `wait_s`."""
        if self._warm:
            return self._bind(self._warm.popleft())
        waiter: asyncio.Future[Pair] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._changed()
        try:
            async with asyncio.timeout(wait_s):
                return await waiter
        except BaseException as failure:
            self._give_back(waiter)
            if isinstance(failure, TimeoutError):
                raise OverCapacity(f"no pair became warm within {wait_s} s") from None
            raise

    def release(self, pair: Pair) -> None:
        """The request is over: the pair dies with it."""
        self._bound.discard(pair)
        self._retire(pair)

    def renew(self) -> None:
        """Replaces every warm pair: what they are connected to is gone."""
        while self._warm:
            self._retire(self._warm.popleft())

    async def run(self) -> None:
        """Keeps the pool filled until cancelled."""
        async with asyncio.TaskGroup() as starts:
            while True:
                self._retire_old()
                delay = self._fill(starts)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(delay):
                        await self._wake.wait()
                self._wake.clear()

    async def close(self) -> None:
        """Ends every pair and waits for it. Call when `run` is over."""
        self._is_closed = True
        for pair in (*self._warm, *self._bound):
            self._retire(pair)
        self._warm.clear()
        self._bound.clear()
        await asyncio.gather(*self._leaving, return_exceptions=True)

    def _fill(self, starts: asyncio.TaskGroup) -> float:
        """Starts what is missing; seconds until the next look."""
        limits = self._limits
        missing = len(self._waiting) + limits.pool_size - len(self._warm) - self._warming
        alive = len(self._warm) + len(self._bound) + self._warming + len(self._leaving)
        missing = min(missing, limits.max_pairs - alive, _WARMING_LIMIT - self._warming)
        now = time.monotonic()
        if missing <= 0:
            self._short_since = None
            return self._until_oldest(now)
        if self._short_since is None:
            self._short_since = now
        # A start costs the CPU that a request in flight wants: while one pair is left, it can wait a little.
        is_urgent = not self._warm or self._waiting or not self._bound
        wait_s = self._short_since + max(self._retry_s, 0.0 if is_urgent else limits.refill_delay_s) - now
        if wait_s > 0:
            return min(wait_s, self._until_oldest(now))
        self._short_since = None
        for _ in range(missing):
            self._warming += 1
            starts.create_task(self._warm_one())
        return self._until_oldest(now)

    async def _warm_one(self) -> None:
        started = time.monotonic()
        try:
            pair = await self._start()
        except (TieError, OSError) as error:
            self._is_proven = False
            self._retry_s = min(max(self._retry_s * 2, _RETRY_FIRST_S), _RETRY_LAST_S)
            logs.logger().warning("pair.failed", error_type=type(error).__name__, reason=str(error))
            self._changed()
            return
        finally:
            self._warming -= 1  # before the pair counts as warm, lest it be counted twice
        self._retry_s, self._is_proven = 0.0, True
        logs.logger().debug("pair.warm", warmup_ms=round((time.monotonic() - started) * 1e3), count=len(self._warm) + 1)
        self._watches[pair] = asyncio.create_task(self._watch(pair))
        self._offer(pair)

    def _offer(self, pair: Pair) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(self._bind(pair))
                return
        self._warm.append(pair)
        self._changed()

    def _give_back(self, waiter: asyncio.Future[Pair]) -> None:
        """The caller was cancelled while it waited, possibly just after its pair was assigned."""
        if waiter.done() and not waiter.cancelled():
            self.release(waiter.result())
        with contextlib.suppress(ValueError):
            self._waiting.remove(waiter)
        self._changed()

    def _bind(self, pair: Pair) -> Pair:
        self._bound.add(pair)
        self._changed()
        return pair

    async def _watch(self, pair: Pair) -> None:
        """A warm pair that dies by itself is replaced; a bound one shows on its socket."""
        status = await pair.wait()
        if pair in self._warm:
            self._warm.remove(pair)
            logs.logger().warning("pair.died", exit_code=status, count=len(self._warm))
            self._retire(pair)

    def _retire(self, pair: Pair) -> None:
        if (watch := self._watches.pop(pair, None)) is not None and watch is not asyncio.current_task():
            watch.cancel()
        task = asyncio.create_task(pair.dispose())
        self._leaving.add(task)
        task.add_done_callback(self._left)
        self._changed()

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        self._changed()

    def _retire_old(self) -> None:
        oldest_allowed = time.monotonic() - self._limits.max_wait_s
        while self._warm and self._warm[0].warm_since <= oldest_allowed:
            self._retire(self._warm.popleft())

    def _until_oldest(self, now: float) -> float:
        if not self._warm:
            return self._limits.max_wait_s
        return max(0.0, self._warm[0].warm_since + self._limits.max_wait_s - now)

    def _changed(self) -> None:
        if not self._is_closed:
            self._wake.set()
            self._on_change()
