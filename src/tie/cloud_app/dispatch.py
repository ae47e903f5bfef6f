"""Runs a prompt on the runtime and passes on what comes back, until its end or until someone has had enough.

Who may have had enough: the helper (`stop`, from any thread) and the runtime, by ending its link. A stop asks the
runtime to abort and reads on to the end, for a while; the death of the link ends the stream at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from tie.api.afm.v1 import afm_pb2
from tie.clients.inference import Generation, Reply
from tie.cloud_app.deadline import Deadline
from tie.cloud_app.intake import Request
from tie.cloud_app.warmup import Warmed
from tie.contracts.errors import DeadlinePassed, PeerGone, TieError

ABORT_TIMEOUT_S: Final = 5.0
"""For the runtime to end a stream after an abort."""
TOKENS_A_SIGN: Final = 128
"""Taken, before the runtime is told so; it waits for that after several times as many."""
DEFAULT_MAX_TOKENS: Final = 1024
"""Where the request sets none: the runtime keeps room for all of it from the start."""


def tokens_wanted(request: Request, prompt_tokens: int, context_length: int) -> int:
    """How many tokens a choice may have: what was asked for, as far as the context has room."""
    asked = request.sampling.max_tokens
    if asked is None:
        asked = max(DEFAULT_MAX_TOKENS, request.sampling.min_tokens)
    return min(asked, context_length - prompt_tokens)


def generate_params(request: Request, warmed: Warmed, max_tokens: int, deadline: Deadline) -> afm_pb2.GenerateParams:
    """A seed is drawn where the request brings none."""
    asked = request.sampling
    sampling = afm_pb2.Sampling(
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        min_p=asked.min_p,
        repetition_penalty=asked.repetition_penalty,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        logit_bias=asked.logit_bias,
        seed=asked.seed if asked.seed is not None else int.from_bytes(os.urandom(8), "big"),
    )
    return afm_pb2.GenerateParams(
        ticket=warmed.link.ticket,
        bundle_identity=warmed.identity,
        sampling=sampling,
        stop_strings=request.stop_strings,
        stop_token_ids=request.stop_token_ids,
        max_tokens=max_tokens,
        min_tokens=min(asked.min_tokens, max_tokens),
        ignore_eos=asked.ignore_eos,
        n=asked.n,
        logprobs=request.logprobs,
        deadline_ms=max(1, int(deadline.left_s * 1000)),
        adapter=request.adapter,
        background=request.is_background,
        grammar=request.grammar,
    )


class Dispatch:
    """One run on the runtime. `stop` and `runtime_gone` may come at any time, before it begins, too."""

    def __init__(self, warmed: Warmed) -> None:
        self._warmed = warmed
        self._generation: Generation | None = None
        self._failure: TieError | None = None
        self._lock = threading.Lock()
        self._is_enough = False
        self._taken = self._told = 0
        self.is_stopped = False

    def start(
        self, tokens: Sequence[int], params: afm_pb2.GenerateParams, deadline: Deadline, token_gap_s: float
    ) -> Iterator[Reply]:
        """The replies, to be read to their end. This and they raise PeerGone, PeerError, DeadlinePassed."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self.is_stopped:
                return iter(())
            self._generation = self._warmed.client.generate(
                tokens, params, deadline_s=deadline.left_s, token_gap_s=token_gap_s
            )
            return self._generation

    def took(self, tokens: int) -> None:
        """So many more were passed on. Who takes nothing lets the runtime wait."""
        self._taken += tokens
        if self._taken - self._told >= TOKENS_A_SIGN:
            self._told = self._taken
            self._warmed.link.took(self._taken)

    def enough(self) -> None:
        """Every choice has ended on this side, and the runtime goes on: a stop string that it did not see."""
        if not self._is_enough:
            self._is_enough = True
            self._warmed.link.abort()

    def stop(self) -> None:
        """The answer is no longer wanted; what the runtime still says is read to its end."""
        with self._lock:
            if self.is_stopped:
                return
            self.is_stopped = True
        self._warmed.link.abort()
        timer = threading.Timer(
            ABORT_TIMEOUT_S, self._fail, (DeadlinePassed(f"the runtime did not abort within {ABORT_TIMEOUT_S:g} s"),)
        )
        timer.daemon = True
        timer.start()

    def runtime_gone(self) -> None:
        self._fail(PeerGone("the runtime is gone"))

    def _fail(self, reason: TieError) -> None:
        with self._lock:
            self._failure = self._failure or reason
            generation = self._generation
        if generation is not None:
            generation.fail(reason)
