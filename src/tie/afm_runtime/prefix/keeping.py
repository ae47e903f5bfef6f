"""The life of the prefix pool in one runtime: warmed and sealed here, or taken over from the runtime before.

Performs what `states` decides, on the engine's thread. A failure costs the cache, never a request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from tie.afm_runtime.forwarding import Forwarding, Ids
from tie.afm_runtime.paging.pool import BlockPool
from tie.afm_runtime.prefix.cache import PoolMemory, PrefixCache
from tie.afm_runtime.prefix.states import Action, Event, IllegalTransition, State, step
from tie.afm_runtime.prefix.trie import Trie
from tie.afm_runtime.prefix.warming import Warming
from tie.afm_runtime.scheduling.scheduler import Scheduler
from tie.api.afm_control.v1 import prefix_pb2
from tie.servicekit import logs


class PrefixStore(Protocol):
    """Where the pool is kept between two runtimes: the model owner. Each of these may raise TieError."""

    def allocate(self) -> PoolMemory:
        """An empty pool to be written."""

    def seal(self, trie: prefix_pb2.PrefixTrie) -> None:
        """Nobody can take a writable mapping from now on; what was allocated here is written no more."""


@dataclass(slots=True)
class Warmth:
    """What was warmed so far, in numbers that other threads may read."""

    prompts: int = 0
    blocks: int = 0
    left_out: int = 0
    digest: bytes = b""
    is_restored: bool = False


class Keeping:
    """`store` is None where there is no owner. `resident`: most copies in the engine's own cache."""

    def __init__(
        self,
        store: PrefixStore | None,
        scheduler: Scheduler,
        pool: BlockPool,
        forwarding: Forwarding,
        *,
        block_size: int,
        resident: int,
    ) -> None:
        self._store = store
        self._scheduler = scheduler
        self._pool = pool
        self._forwarding = forwarding
        self._block_size = block_size
        self._resident = resident
        self._warming: tuple[Trie, PoolMemory, Warming] | None = None
        self.state = State.NONE if store is None else State.EMPTY
        self.warmth = Warmth()
        self._log = logs.logger()

    def restore(self, trie: Trie, memory: PoolMemory) -> None:
        """Serves from what an earlier runtime left, before the first request."""
        self._perform(Event.RESTORED)
        self._serve(trie, memory)
        self.warmth.is_restored = True

    def warm(self, prompt: Ids) -> None:
        """One registered prompt. Whatever goes wrong ends the warming."""
        try:
            action = self._perform(Event.WARM)
            if action is Action.ALLOCATE_AND_COMPUTE:
                assert self._store is not None, "the table warms only where there is an owner"
                trie, memory = Trie(self._block_size), self._store.allocate()
                self._warming = trie, memory, Warming(trie, memory, self._pool, self._forwarding)
            assert self._warming is not None, "a pool is warmed once it is allocated"
            done = self._warming[2].warm(prompt)
        except IllegalTransition as error:
            self._log.warning("prefix.refused", reason=str(error))
        except Exception as error:  # the edge of the warming: the node serves without the cache
            self.fail(error)
        else:
            self.warmth.prompts += 1
            self.warmth.blocks += done.computed
            self.warmth.left_out += done.left_out

    def seal(self) -> None:
        """Ends the warming and serves from what came of it."""
        try:
            self._perform(Event.SEAL)
            assert self._store is not None, "the table seals only what was warmed"
            assert self._warming is not None, "the table seals only what was warmed"
            trie, memory, _ = self._warming
            self._store.seal(trie.to_message())
        except IllegalTransition as error:
            self._log.warning("prefix.refused", reason=str(error))
        except Exception as error:  # the edge of the warming, as above
            self.fail(error)
        else:
            memory.flags.writeable = False  # the seal binds later mappings; this one by itself
            self._warming = None
            self._serve(trie, memory)

    def fail(self, error: Exception) -> None:
        """From now on nothing is served from the pool."""
        self._log.error("prefix.failed", state=self.state.name, **logs.failure_place(error))
        if self._perform(Event.FAILED) is Action.DROP:
            self._warming = None
            if (cache := self._scheduler.prefix) is not None:
                self._scheduler.prefix = None
                self._pool.release(cache.resident.blocks, len(cache.resident.blocks))

    def _serve(self, trie: Trie, memory: PoolMemory) -> None:
        self._scheduler.prefix = PrefixCache(trie, memory, self._pool, self._forwarding, self._resident)
        self.warmth.blocks, self.warmth.digest = len(trie), trie.digest()
        self._log.info("prefix.serving", block_count=len(trie))

    def _perform(self, event: Event) -> Action:
        self.state, action = step(self.state, event)
        return action
