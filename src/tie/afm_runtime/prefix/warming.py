"""Computes registered prompts and keeps their blocks: in the trie, and copied into the pool that outlives the runtime.

Runs on the engine's thread before the first request is admitted. What the pool has no room for is left out: requests
that begin so compute it themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tie.afm_runtime.forwarding import Forwarding, Ids, Step
from tie.afm_runtime.paging.pool import BlockPool
from tie.afm_runtime.prefix.cache import PoolMemory
from tie.afm_runtime.prefix.trie import Node, Trie

CHUNK_BLOCKS: Final = 16


@dataclass(frozen=True, slots=True)
class Warmed:
    """What came of a prompt, in blocks: those that were there, those computed, those without room."""

    known: int
    computed: int
    left_out: int


class Warming:
    """`warm` each prompt; the trie is complete afterwards."""

    def __init__(self, trie: Trie, memory: PoolMemory, pool: BlockPool, forwarding: Forwarding) -> None:
        self._trie = trie
        self._memory = memory
        self._pool = pool
        self._forwarding = forwarding

    def warm(self, prompt: Ids) -> Warmed:
        """Whole blocks of it; what is left of the last one is for requests to compute."""
        size = self._trie.block_size
        wanted = len(prompt) // size
        path = self._trie.match(prompt, wanted)
        known = len(path)
        room = min(wanted - known, len(self._memory) - len(self._trie), self._pool.free - known)
        if room > 0:
            self._compute(prompt, path, room)
        return Warmed(known, max(0, room), wanted - known - max(0, room))

    def _compute(self, prompt: Ids, path: list[Node], room: int) -> None:
        blocks, written = self._pool.take(len(path) + room), len(path)
        try:
            if path:
                data = self._memory[[node.place for node in path]]
                self._forwarding.write_blocks(blocks[: len(path)], data.reshape(-1))
            for first in range(len(path), len(blocks), CHUNK_BLOCKS):
                last = min(first + CHUNK_BLOCKS, len(blocks))
                written = last
                self._forwarding.advance(self._step(prompt, blocks[:last], first))
                self._keep(prompt, path, blocks[first:last])
        finally:
            self._pool.release(blocks, written)

    def _keep(self, prompt: Ids, path: list[Node], blocks: Sequence[int]) -> None:
        size, data = self._trie.block_size, self._forwarding.read_blocks(blocks)
        rows = data.reshape(len(blocks), -1)
        for row in rows:
            at = len(path) * size
            # The bytes first: a node says that they are there.
            self._memory[len(self._trie)] = row
            path.append(self._trie.insert(path, prompt[at : at + size]))

    def _step(self, prompt: Ids, blocks: Sequence[int], first: int) -> Step:
        size = self._trie.block_size
        begin, end = first * size, len(blocks) * size
        return Step(
            token_ids=np.ascontiguousarray(prompt[begin:end], np.int32),
            query_lens=np.array([end - begin], np.int32),
            context_lens=np.array([end], np.int32),
            block_tables=np.array(blocks, np.int32),
            block_table_offsets=np.array([0, len(blocks)], np.int32),
            sample=np.zeros(1, np.bool_),
            sampling=[None],
        )
