"""The prefix cache as the scheduler sees it: how much of a prompt is there, and the blocks that hold it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tie.afm_runtime.forwarding import NO_ADAPTER, Forwarding
from tie.afm_runtime.paging.pool import BlockPool
from tie.afm_runtime.prefix.resident import Resident
from tie.afm_runtime.prefix.trie import Trie
from tie.afm_runtime.sequence import Admitted

PoolMemory = NDArray[np.uint8]
"""[blocks, bytes of a block]: the pool that outlives the runtime, read-only unless it is being warmed."""


class PrefixCache:
    """Serves from `trie` and `memory`, with at most `resident` copies in the engine's own cache."""

    def __init__(self, trie: Trie, memory: PoolMemory, pool: BlockPool, forwarding: Forwarding, resident: int) -> None:
        assert len(memory) >= len(trie), "every node has its block"
        self._trie = trie
        self._memory = memory
        self._forwarding = forwarding
        self.resident = Resident(pool, resident, self._load)

    def places(self, admitted: Admitted) -> list[int]:
        """Of the blocks with which a prompt begins. Its last token is never among them: it has to be computed."""
        if admitted.adapter != NO_ADAPTER:
            return []  # with an adapter the same tokens have other keys and values
        most = (len(admitted.prompt) - 1) // self._trie.block_size
        return [node.place for node in self._trie.match(admitted.prompt, most)]

    def _load(self, blocks: Sequence[int], places: Sequence[int]) -> None:
        first, last = places[0], places[-1]
        is_run = last - first == len(places) - 1 and list(places) == list(range(first, last + 1))
        data = self._memory[first : last + 1] if is_run else self._memory[list(places)]
        self._forwarding.write_blocks(blocks, data.reshape(-1))
