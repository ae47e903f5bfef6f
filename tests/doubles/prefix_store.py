"""A keeper of the prefix pool that behaves as the model owner does, in this process."""

from __future__ import annotations

import numpy as np
from doubles.scripted_engine import BLOCK

from tie.afm_runtime.prefix.cache import PoolMemory
from tie.api.afm_control.v1 import prefix_pb2
from tie.contracts.errors import PeerError

BLOCK_BYTES = BLOCK * 8


class MemoryStore:
    def __init__(self, blocks: int = 64) -> None:
        self.memory = np.zeros((blocks, BLOCK_BYTES), np.uint8)
        self.sealed: prefix_pb2.PrefixTrie | None = None
        self.is_allocated = False
        self.fails_at = ""

    def allocate(self) -> PoolMemory:
        self._check("allocate")
        assert not self.is_allocated
        self.is_allocated = True
        return self.memory.view()

    def seal(self, trie: prefix_pb2.PrefixTrie) -> None:
        self._check("seal")
        assert self.is_allocated
        self.sealed = trie
        self.memory.flags.writeable = False

    def _check(self, what: str) -> None:
        if self.fails_at == what:
            raise PeerError("scripted")
