"""The pool of KV blocks: who owns which, how often, and that none is handed on before it is zeroed.

Only the engine's thread touches it. Blocks that were reserved but never written need no zeroing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence


class PoolCorrupt(Exception):
    """A block is owned otherwise than it is counted: nothing that the pool says can be trusted any more."""


class BlockPool:
    """`count` blocks, numbered from 0. `zero` overwrites the KV of the blocks it is given."""

    def __init__(self, count: int, zero: Callable[[Sequence[int]], None]) -> None:
        self.count = count
        self._zero = zero
        self._free = list(range(count - 1, -1, -1))
        self._references = [0] * count
        self._written = bytearray(count)

    @property
    def free(self) -> int:
        return len(self._free)

    def references(self, block: int) -> int:
        """How many own it."""
        return self._references[block]

    def mark_written(self, block: int) -> None:
        """It holds something: it will be zeroed, whoever releases it."""
        self._written[block] = 1

    def take(self, count: int) -> list[int]:
        """`count` zeroed blocks, each with one reference. The caller has asked `free` first."""
        assert 0 <= count <= len(self._free), "blocks are taken only after asking how many are free"
        if count == 0:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        for block in taken:
            self._references[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more owner for each of these."""
        for block in blocks:
            if self._references[block] < 1:
                raise PoolCorrupt(f"block {block} is shared while nobody owns it")
            self._references[block] += 1

    def release(self, blocks: Sequence[int], written: int) -> None:
        """One owner less; the owner wrote into the first `written`. Blocks without owner are zeroed, then free."""
        gone = []
        for index, block in enumerate(blocks):
            if self._references[block] < 1:
                raise PoolCorrupt(f"block {block} is released more often than it was taken")
            self._references[block] -= 1
            if index < written:
                self._written[block] = 1
            if self._references[block] == 0:
                gone.append(block)
        if dirty := [block for block in gone if self._written[block]]:
            self._zero(dirty)
            for block in dirty:
                self._written[block] = 0
        self._free.extend(reversed(gone))

    def check(self, owners: Iterable[Sequence[int]]) -> None:
        """Raises PoolCorrupt unless every block is owned exactly as often as counted and free exactly when unowned."""
        owned = Counter(block for blocks in owners for block in blocks)
        for block, references in enumerate(self._references):
            if owned[block] != references:
                raise PoolCorrupt(f"block {block} has {owned[block]} owners and is counted {references} times")
        if sorted(self._free) != [block for block, references in enumerate(self._references) if references == 0]:
            raise PoolCorrupt(f"the free list of {len(self._free)} is not the list of blocks without owner")
        if any(self._written[block] for block in self._free):
            raise PoolCorrupt("a free block was not zeroed")
