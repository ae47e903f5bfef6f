"""Decides which rows the next step has: running sequences decode first, then prompts are prefilled in chunks.

Decisions only: no clock, no model, no replies. Requests are served in the order in which they came. One is admitted
when the blocks for what is known of it are free, and gets more as it grows; when none is left, the youngest gives all
of its blocks back and waits at the head of the queue, to be computed again. So the oldest always gets on, nobody
starves, and what one request is answered depends on no other. Choices of a request share the whole blocks of its
prompt: the first computes them, the others wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tie.afm_runtime.decoding.stops import TokenBytes
from tie.afm_runtime.paging import BlockPool
from tie.afm_runtime.sequence import Request, Sequence, State


@dataclass(frozen=True, slots=True)
class Limits:
    block_size: int
    step_token_budget: int
    max_running: int
    """Sequences, not requests."""
    max_queued: int
    """Requests."""


class Row(NamedTuple):
    sequence: Sequence
    query_len: int
    samples: bool


class QueueFull(Exception):
    """No room for another waiting request."""


class Scheduler:
    def __init__(self, pool: BlockPool, limits: Limits, token_bytes: TokenBytes) -> None:
        assert limits.step_token_budget >= limits.max_running, "else decode rows could starve"
        self._pool = pool
        self._limits = limits
        self._token_bytes = token_bytes
        self._queue: deque[Request] = deque()
        self._running: list[Sequence] = []
        self.preempted = 0
        """How often a request had to give its blocks back."""

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def running(self) -> int:
        return len(self._running)

    def requests(self) -> Iterator[Request]:
        """Every request not yet ended, queued and running, each once."""
        yield from list(self._queue)
        yield from list({id(sequence.request): sequence.request for sequence in self._running}.values())

    def fits_ever(self, request: Request) -> bool:
        """Whether an idle engine could run it to its longest end; the last token of an answer needs no block."""
        admitted = request.admitted
        blocks = admitted.choices * self._blocks(len(admitted.prompt) + admitted.stops.max_tokens - 1)
        blocks -= (admitted.choices - 1) * self._common(request)
        return blocks <= self._pool.count and admitted.choices <= self._limits.max_running

    def enqueue(self, request: Request) -> None:
        """Raises QueueFull, unless it can be admitted at once."""
        if len(self._queue) >= self._limits.max_queued and (self._queue or not self._fits_now(request)):
            raise QueueFull
        self._queue.append(request)

    def plan(self) -> list[Row]:
        """Fills one step. An empty plan means that nothing runs."""
        for sequence in list(self._running):
            self._grow(sequence)
        while self._queue and self._fits_now(self._queue[0]):
            self._admit(self._queue.popleft())
        rows, budget = [], self._limits.step_token_budget
        for sequence in self._running:
            sequence.catch_up()
            if sequence.pending == 1 and sequence.leader is None:
                rows.append(Row(sequence, 1, True))
                budget -= 1
        for sequence in self._running:
            if budget > 0 and sequence.pending > 1 and sequence.leader is None:
                count = min(sequence.pending, budget)
                rows.append(Row(sequence, count, count == sequence.pending))
                budget -= count
        return rows

    def end(self, request: Request) -> None:
        """Takes a request out, in whatever state, and returns its blocks. Ending it twice changes nothing."""
        if request.state is State.QUEUED and request in self._queue:
            self._queue.remove(request)
        for sequence in request.sequences:
            self.end_sequence(sequence)
        request.state = State.ENDED

    def end_sequence(self, sequence: Sequence) -> None:
        """Returns the blocks of one choice; its siblings go on."""
        if sequence in self._running:
            self._stop_running(sequence)
        sequence.wipe()

    def check(self) -> None:
        """Raises PoolCorrupt unless the running sequences own exactly the blocks that are not free."""
        self._pool.check(sequence.blocks for sequence in self._running)

    def _grow(self, sequence: Sequence) -> None:
        """Gives a running sequence the block that its next token needs, unless it is itself preempted for it."""
        while sequence.blocks and self._blocks(sequence.length) > len(sequence.blocks):
            if self._pool.free:
                sequence.grow(self._pool.take(1))
            else:
                youngest = self._running[-1].request
                assert youngest is not self._running[0].request, "a request that runs alone fits the pool"
                self._preempt(youngest)

    def _preempt(self, request: Request) -> None:
        for sequence in [sequence for sequence in self._running if sequence.request is request]:
            self._stop_running(sequence)
        request.state = State.QUEUED
        self._queue.appendleft(request)
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
            return self._needs(request) <= self._pool.free
        rows = len(self._running) + request.admitted.choices
        return self._needs(request) + rows <= self._pool.free and rows <= self._limits.max_running

    def _admit(self, request: Request) -> None:
        if not request.sequences:
            size = self._limits.block_size
            request.sequences = [
                Sequence(request, choice, size, self._token_bytes) for choice in range(request.admitted.choices)
            ]
        leader, *others = [sequence for sequence in request.sequences if not sequence.is_finished]
        leader.grow(self._pool.take(self._blocks(leader.length)))
        self._running.append(leader)
        common = self._common(request)
        for sequence in others:
            if common:
                self._pool.share(leader.blocks[:common])
                sequence.follow(leader, leader.blocks[:common], common * self._limits.block_size)
            sequence.grow(self._pool.take(self._blocks(sequence.length) - common))
            self._running.append(sequence)
        request.state = State.RUNNING

    def _needs(self, request: Request) -> int:
        lengths = [sequence.length for sequence in request.sequences if not sequence.is_finished]
        if not request.sequences:
            lengths = [len(request.admitted.prompt)] * request.admitted.choices
        return sum(self._blocks(length) for length in lengths) - (len(lengths) - 1) * self._common(request)

    def _common(self, request: Request) -> int:
        """Blocks of the prompt that all choices read and none writes: each computes the last token for itself."""
        return (len(request.admitted.prompt) - 1) // self._limits.block_size

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._limits.block_size)
