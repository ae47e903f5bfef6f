"""Decides which requests run: admission, growth, preemption.

Decisions only: no clock, no model, no replies. A request is admitted in its turn when the blocks for what is known of
it are free, and gets more as it grows; when none is left, the youngest gives all of its blocks back and waits at the
head of its line, to be computed again: one of the background where there is one, unless it had to twice before. So the
oldest always gets on, nobody starves, and what one request is answered depends on no other. Choices of a request share
the whole blocks of its prompt: the first computes them, the others wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tie.afm_runtime.decoding.stops import TokenBytes
from tie.afm_runtime.paging.pool import BlockPool
from tie.afm_runtime.prefix.cache import PrefixCache
from tie.afm_runtime.scheduling.dealing import Row, deal
from tie.afm_runtime.scheduling.limits import Limits
from tie.afm_runtime.scheduling.pace import Pace
from tie.afm_runtime.scheduling.waiting import Waiting
from tie.afm_runtime.sequence import Request, Sequence, State


class QueueFull(Exception):
    """No room for another waiting request."""


class Scheduler:
    def __init__(
        self, pool: BlockPool, limits: Limits, token_bytes: TokenBytes, prefix: PrefixCache | None = None
    ) -> None:
        assert limits.step_token_budget >= limits.max_running, "else decode rows could starve"
        self._pool = pool
        self._limits = limits
        self._token_bytes = token_bytes
        self.prefix = prefix
        self._waiting = Waiting()
        self.pace: Final = Pace(limits.step_token_budget)
        self._running: list[Sequence] = []
        self.preempted = 0
        """How often a request had to give its blocks back."""
        self.shared_tokens = 0
        """Tokens of prompts that no step computes, since another choice of the request does."""

    @property
    def queued(self) -> int:
        return len(self._waiting)

    @property
    def queued_background(self) -> int:
        return self._waiting.background

    @property
    def running(self) -> int:
        return len(self._running)

    def requests(self) -> Iterator[Request]:
        """Every request not yet ended, queued and running, each once."""
        yield from list(self._waiting)
        yield from list({id(sequence.request): sequence.request for sequence in self._running}.values())

    def fits_ever(self, request: Request) -> bool:
        """Whether an idle engine could run it to its longest end; the last token of an answer needs no block."""
        admitted = request.admitted
        blocks = admitted.choices * self._blocks(len(admitted.prompt) + admitted.stops.max_tokens - 1)
        blocks -= (admitted.choices - 1) * self._common(request)
        return blocks <= self._pool.count and admitted.choices <= self._limits.max_running

    def enqueue(self, request: Request) -> None:
        """Raises QueueFull, unless it can be admitted at once."""
        most = self._limits.max_queued
        is_full = len(self._waiting) >= most or (request.is_background and self._waiting.background >= -(-most // 2))
        if is_full and (len(self._waiting) or not self._fits_now(request)):
            raise QueueFull
        self._waiting.append(request)

    def plan(self) -> list[Row]:
        """Fills one step. An empty plan means that nothing runs, or that whoever does is held."""
        for sequence in list(self._running):
            self._grow(sequence)
        while (request := self._waiting.next()) is not None and self._fits_now(request):
            self._admit(self._waiting.take())
        for sequence in self._running:
            sequence.catch_up()
        ready = (s for s in self._running if s.leader is None and not s.request.is_held)
        return deal(ready, self.pace.tokens, self._limits.step_token_budget)

    def end(self, request: Request) -> None:
        """Takes a request out, in whatever state, and returns its blocks. Ending it twice changes nothing."""
        if request.state is State.QUEUED and request in self._waiting:
            self._waiting.remove(request)
        for sequence in request.sequences:
            self.end_sequence(sequence)
        request.state = State.ENDED

    def end_sequence(self, sequence: Sequence) -> None:
        """Returns the blocks of one choice; its siblings go on."""
        if sequence in self._running:
            self._stop_running(sequence)
        sequence.wipe()

    def check(self) -> None:
        """Raises PoolCorrupt unless running sequences and the prefix cache own exactly the blocks that are not free."""
        cached = self.prefix.resident.blocks if self.prefix is not None else []
        self._pool.check([*(sequence.blocks for sequence in self._running), cached])

    def _grow(self, sequence: Sequence) -> None:
        """Gives a running sequence the block that its next token needs, unless it is itself preempted for it."""
        while sequence.blocks and self._blocks(sequence.length) > len(sequence.blocks):
            if self._free:
                sequence.grow(self._take(1))
            else:
                self._preempt(self._least_urgent())

    def _least_urgent(self) -> Request:
        """The youngest of the background, else the youngest of all."""
        oldest, youngest = self._running[0].request, self._running[-1].request
        assert youngest is not oldest, "a request that runs alone fits the pool"
        background = (s.request for s in reversed(self._running) if s.request.is_background)
        return next(background, youngest)

    def _preempt(self, request: Request) -> None:
        for sequence in [sequence for sequence in self._running if sequence.request is request]:
            self._stop_running(sequence)
        request.state = State.QUEUED
        request.preempted += 1
        self._waiting.put_back(request)
        self.preempted += 1

    def _stop_running(self, sequence: Sequence) -> None:
        for sibling in sequence.request.sequences:
            sibling.catch_up()
        self._running.remove(sequence)
        written = self._blocks(sequence.computed)
        self._pool.release(sequence.give_back(), written)

    def _fits_now(self, request: Request) -> bool:
        """Beside what runs only with a block to spare for each sequence, or it would soon be preempted again."""
        if not self._running:
            return self._needs(request) <= self._free
        rows = len(self._running) + request.admitted.choices
        return self._needs(request) + rows <= self._free and rows <= self._limits.max_running

    def _admit(self, request: Request) -> None:
        if not request.sequences:
            size = self._limits.block_size
            request.sequences = [
                Sequence(request, choice, size, self._token_bytes) for choice in range(request.admitted.choices)
            ]
        leader, *others = [sequence for sequence in request.sequences if not sequence.is_finished]
        self._adopt_cached(leader)
        leader.grow(self._take(self._blocks(leader.length) - len(leader.blocks)))
        self._running.append(leader)
        common = self._common(request)
        for sequence in others:
            if common:
                self._pool.share(leader.blocks[:common])
                sequence.share_with(leader, leader.blocks[:common], common * self._limits.block_size)
                self.shared_tokens += sequence.common
            sequence.grow(self._take(self._blocks(sequence.length) - common))
            self._running.append(sequence)
        request.state = State.RUNNING

    def _adopt_cached(self, sequence: Sequence) -> None:
        if self.prefix is None:
            return
        blocks = self.prefix.resident.hold(self.prefix.places(sequence.request.admitted))
        tokens = len(blocks) * self._limits.block_size
        sequence.adopt(blocks, tokens)
        self.shared_tokens += tokens
        if not sequence.watch.count:
            sequence.request.cached = tokens

    @property
    def _free(self) -> int:
        """Blocks that can be had: free ones, and copies of the prefix cache's that nobody uses."""
        return self._pool.free + (self.prefix.resident.evictable if self.prefix is not None else 0)

    def _take(self, count: int) -> list[int]:
        if self.prefix is not None and count > self._pool.free:
            self.prefix.resident.evict(count - self._pool.free)
        return self._pool.take(count)

    def _needs(self, request: Request) -> int:
        lengths = [sequence.length for sequence in request.sequences if not sequence.is_finished]
        if not request.sequences:
            lengths = [len(request.admitted.prompt)] * request.admitted.choices
        blocks = sum(self._blocks(length) for length in lengths) - (len(lengths) - 1) * self._common(request)
        if self.prefix is None:
            return blocks
        return blocks - self.prefix.resident.in_use(self.prefix.places(request.admitted))

    def _common(self, request: Request) -> int:
        """Blocks of the prompt that all choices read and none writes: each computes the last token for itself."""
        return (len(request.admitted.prompt) - 1) // self._limits.block_size

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._limits.block_size)
