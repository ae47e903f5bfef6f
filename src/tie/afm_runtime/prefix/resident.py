"""Copies of hot blocks in the engine's own cache: a bounded number, the longest unused evicted first.

What the pool in main memory holds can always be read again, so an eviction loses nothing. Only the engine's thread
touches this.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

from tie.afm_runtime.paging.pool import BlockPool

Load = Callable[[Sequence[int], Sequence[int]], None]


class Resident:
    """`load(blocks, places)` copies blocks of the pool into blocks of the cache; `most` of them may stay."""

    def __init__(self, pool: BlockPool, most: int, load: Load) -> None:
        self._pool = pool
        self._most: Final = most
        self._load = load
        self._held: OrderedDict[int, int] = OrderedDict()
        """Block by place, the longest unused first."""
        self.loaded = 0
        """How often a block was read through."""

    @property
    def blocks(self) -> list[int]:
        return list(self._held.values())

    @property
    def evictable(self) -> int:
        """Copies that nobody uses now."""
        return sum(1 for block in self._held.values() if self._pool.references(block) == 1)

    def in_use(self, places: Sequence[int]) -> int:
        """How many of these are there and used by somebody, so that using them takes no block from anyone."""
        held = (self._held.get(place) for place in places)
        return sum(1 for block in held if block is not None and self._pool.references(block) > 1)

    def add(self, place: int, block: int) -> bool:
        """Keeps a block that was just computed, if there is room; its owner gives it up to us."""
        if len(self._held) >= self._most:
            return False
        self._held[place] = block
        return True

    def hold(self, places: Sequence[int]) -> list[int]:
        """Blocks for these places, in order, each the caller's to release; fewer where the cache is full.

        A copy for which there is no room here is the caller's alone.
        """
        blocks: list[int] = []
        missing: list[tuple[int, int]] = []
        for place in places:
            block = self._held.get(place)
            if block is not None:
                self._held.move_to_end(place)
                self._pool.share([block])
            elif (block := self._room()) is not None:
                missing.append((block, place))
            else:
                break
            blocks.append(block)
        if missing:
            self._load([block for block, _ in missing], [place for _, place in missing])
            self.loaded += len(missing)
        for block, place in missing:
            self._pool.mark_written(block)
            if self._make_room_here():
                self._held[place] = block
                self._pool.share([block])
        return blocks

    def evict(self, count: int) -> None:
        """Frees as many blocks, or all that nobody uses."""
        for place, block in list(self._held.items()):
            if count <= 0:
                return
            if self._pool.references(block) == 1:
                del self._held[place]
                self._pool.release([block], 1)
                count -= 1

    def _room(self) -> int | None:
        if not self._pool.free:
            self.evict(1)
        return self._pool.take(1)[0] if self._pool.free else None

    def _make_room_here(self) -> bool:
        if len(self._held) >= self._most:
            self.evict(1)
        return len(self._held) < self._most
