"""What the node is to the outside at this moment: state, lease, load. Everyone who must know of a change waits here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from tie.contracts.errors import NotReady


class NodeState(Enum):
    UNKNOWN = auto()  # no controller has spoken, or its lease ran out
    READY = auto()
    BUSY = auto()  # admission stopped for a while; not a fault
    ERROR = auto()


@dataclass(frozen=True, slots=True)
class Load:
    """As WatchLoadLevel publishes it."""

    max_batch_size: int
    current_batch_size: int
    optimal_batch_size: int


class Board:
    """Reads the pool and the keyring through the two callables; holds the rest itself."""

    def __init__(self, max_pairs: int, in_flight: Callable[[], int], lacks: Callable[[], str]) -> None:
        self._max_pairs, self._in_flight, self._lacks = max_pairs, in_flight, lacks
        self._state = NodeState.UNKNOWN
        self._is_draining = False
        self._max_batch_size = self._optimal_batch_size = 0
        self._changed = asyncio.Event()

    @property
    def state(self) -> NodeState:
        return self._state

    @property
    def in_flight(self) -> int:
        return self._in_flight()

    @property
    def capacity(self) -> int:
        """Requests that may be in flight at one time."""
        return min(self._max_pairs, self._max_batch_size or self._max_pairs)

    def publish(self, state: NodeState, max_batch_size: int = 0, optimal_batch_size: int = 0) -> None:
        self._state = state
        self._max_batch_size, self._optimal_batch_size = max_batch_size, optimal_batch_size
        self.changed()

    def drain(self) -> None:
        """For good: this cloudboardd is about to end."""
        self._is_draining = True
        self.changed()

    @property
    def is_serving(self) -> bool:
        """What health says: busy is serving, only with no room."""
        return not self._is_draining and self._state in (NodeState.READY, NodeState.BUSY) and not self._lacks()

    def check_admits(self) -> None:
        """Raises NotReady, with the reason, unless a new request may begin."""
        if self._is_draining:
            raise NotReady("the node is draining")
        if self._state is not NodeState.READY:
            raise NotReady(f"the node is not ready: {self._state.name.lower()}")
        if lack := self._lacks():
            raise NotReady(f"the node is not ready: {lack}")

    def load(self) -> Load:
        """The level now; no room at all unless new requests are admitted."""
        is_open = self.is_serving and self._state is NodeState.READY
        if not is_open:
            return Load(0, self.in_flight, 0)
        optimal = min(self._optimal_batch_size or self.capacity, self.capacity)
        return Load(self.capacity, self.in_flight, optimal)

    def changed(self) -> None:
        """Wakes everyone who waits in `change`."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def change(self) -> None:
        """Returns when something may be different from what the caller just read."""
        await self._changed.wait()
