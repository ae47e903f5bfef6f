"""What the engine knows of a request while it serves it. Only the engine's thread changes any of it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Protocol

import numpy as np

from tie.afm_runtime.decoding.grammar import Matcher
from tie.afm_runtime.decoding.stops import Reason, Stop, StopRules, StopWatch, TokenBytes
from tie.afm_runtime.forwarding import NO_ADAPTER, Ids, Logprobs, RowSampling, SamplingRules
from tie.api.afm.v1 import afm_pb2

MOST_PREEMPTED: Final = 2
MOST_UNREAD: Final = 1024
"""Tokens of a request that may wait for its reader; one that stalls costs no more than that."""
_EMPTY: Final = np.zeros(0, np.int32)


class ReplySink(Protocol):
    """Where a request's answers go, in order. Called by the engine's thread; returns at once."""

    def token(self, choice: int, token: int, logprobs: Logprobs | None) -> None:
        """One sampled token."""

    def finish(self, finish: afm_pb2.Finish) -> None:
        """This choice gets no more tokens."""

    def close(self, usage: afm_pb2.Usage, failure: afm_pb2.Failure | None) -> None:
        """The last word; sends the final flag. Called once."""


@dataclass(frozen=True, slots=True, repr=False)
class Admitted:
    """A request whose every value has been checked (`intake`)."""

    prompt: Ids
    rules: SamplingRules
    stops: StopRules
    choices: int
    deadline: float
    """In time.monotonic() seconds."""
    adapter: int = NO_ADAPTER
    """Its place among those that the model was given."""
    is_background: bool = False
    """Whether interactive requests come first."""
    grammar: str = ""
    """What the answer must keep to, as text; empty for nothing."""


class State(Enum):
    QUEUED = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True, repr=False, eq=False)
class Request:
    """One admitted request: its choices are sequences of their own, admitted and ended together."""

    admitted: Admitted
    replies: ReplySink
    state: State = State.QUEUED
    sequences: list[Sequence] = field(default_factory=list)
    arrived: float = field(default_factory=time.monotonic)
    first_token: float = 0.0
    matcher: Matcher | None = None
    """In the state before the first token; each choice has a copy."""
    is_unbuildable: bool = False
    """Whether its grammar could not be built."""
    preempted: int = 0
    """How often it had to give its blocks back."""
    sent: int = 0
    """Tokens of all its choices that were handed to its reader."""
    read: int = 0
    """How many of them the reader says it took."""
    cached: int = 0
    """Tokens of the prompt that were in the prefix cache when it was first admitted."""
    stalled_at: float | None = None
    """Since when it is held, in time.monotonic() seconds, if nothing was read meanwhile."""

    @property
    def is_held(self) -> bool:
        """Whether it waits for its reader: it keeps its blocks, and no step has a row of it."""
        return self.sent - self.read >= MOST_UNREAD

    @property
    def is_background(self) -> bool:
        """Whether others come first: no longer when it was preempted MOST_PREEMPTED times, so that it gets on."""
        return self.admitted.is_background and self.preempted < MOST_PREEMPTED

    @property
    def completion_tokens(self) -> int:
        return sum(sequence.watch.count for sequence in self.sequences)


class Sequence:
    """One choice of a request. `tokens[:computed]` has its KV in `blocks`; `tokens[:length]` is known.

    While it waits, for the first time or after it was preempted, it has no block and `computed` is 0. Where `leader` is
    set, that choice computes the first `common` tokens, in blocks that both own and neither writes afterwards.
    """

    __slots__ = (
        "_plain",
        "_table",
        "blocks",
        "choice",
        "common",
        "computed",
        "is_finished",
        "leader",
        "length",
        "matcher",
        "prompt_len",
        "request",
        "tokens",
        "watch",
    )

    def __init__(self, request: Request, choice: int, block_size: int, token_bytes: TokenBytes) -> None:
        admitted = request.admitted
        self.request = request
        self.choice = choice
        self.blocks: list[int] = []
        self._table = np.zeros(-(-(len(admitted.prompt) + admitted.stops.max_tokens) // block_size), np.int32)
        self.prompt_len = len(admitted.prompt)
        self.tokens = np.zeros(self.prompt_len + admitted.stops.max_tokens, np.int32)
        self.tokens[: self.prompt_len] = admitted.prompt
        self.length = self.prompt_len
        self.computed = 0
        self.common = 0
        self.leader: Sequence | None = None
        self.is_finished = False
        self.watch = StopWatch(admitted.stops, token_bytes)
        self.matcher = None if request.matcher is None else request.matcher.copy()
        self._plain = RowSampling(admitted.rules, choice, _EMPTY, self.prompt_len)

    @property
    def pending(self) -> int:
        """Known tokens without KV: 1 while decoding."""
        return self.length - self.computed

    @property
    def table(self) -> Ids:
        """`blocks` as the model reads them."""
        return self._table[: len(self.blocks)]

    def grow(self, blocks: list[int]) -> None:
        """Takes these as its next ones."""
        self._table[len(self.blocks) : len(self.blocks) + len(blocks)] = blocks
        self.blocks += blocks

    def adopt(self, blocks: list[int], tokens: int) -> None:
        """Begins with blocks that hold as many of its tokens already; before it has any other."""
        self.grow(blocks)
        self.computed = tokens

    def share_with(self, leader: Sequence, blocks: list[int], common: int) -> None:
        """Has its first tokens computed by the leader, in these blocks of the leader's."""
        self.leader, self.common = leader, common
        self.grow(blocks)

    def catch_up(self) -> None:
        """Goes on by itself once the leader has computed what they have in common."""
        if self.leader is not None and self.leader.computed >= self.common:
            self.leader, self.computed = None, self.common

    def give_back(self) -> list[int]:
        """Its blocks, which are no longer its own; everything would have to be computed again."""
        blocks, self.blocks, self.computed, self.leader = self.blocks, [], 0, None
        return blocks

    def sampling(self) -> RowSampling:
        """For the row of this step that reaches `length`."""
        barred = self.watch.barred
        if not barred and not self._plain.rules.looks_back:
            return self._plain
        history = self.tokens[: self.length] if self._plain.rules.looks_back else _EMPTY
        return RowSampling(self._plain.rules, self.choice, history, self.prompt_len, barred)

    def follow(self, token: int) -> Stop | None:
        """What a sampled token ends, if it ends anything: a complete answer ends whatever else would go on.

        Raises GrammarFault.
        """
        stop = self.watch.feed(token)
        if self.matcher is None or (stop is not None and stop.reason is not Reason.LENGTH):
            return stop
        self.matcher.feed(token)
        return Stop(Reason.GRAMMAR) if self.matcher.is_complete else stop

    def append(self, token: int) -> None:
        self.tokens[self.length] = token
        self.length += 1

    def wipe(self) -> None:
        """No token outlives the request in this object."""
        self.tokens.fill(0)
