"""The engine loop on a scripted model, one step at a time, with replies that are kept and looked at."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from doubles import scripted_engine
from doubles.scripted_engine import ScriptedEngine

from tie.afm_runtime.decoding.grammar import Matcher
from tie.afm_runtime.decoding.stops import StopRules
from tie.afm_runtime.engine import Engine
from tie.afm_runtime.forwarding import NO_ADAPTER, Logprobs, SamplingRules
from tie.afm_runtime.meters import Meters
from tie.afm_runtime.paging.pool import BlockPool
from tie.afm_runtime.scheduling.scheduler import Scheduler
from tie.afm_runtime.sequence import Admitted, Request
from tie.api.afm.v1 import afm_pb2


class Answer:
    """A `sequence.ReplySink` that keeps what it is told, and refuses to be told anything after the last word."""

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: list[Logprobs | None] = []
        self.finishes: dict[int, afm_pb2.Finish] = {}
        self.usage: afm_pb2.Usage | None = None
        self.failure: afm_pb2.Failure | None = None
        self.request: Request

    def token(self, choice: int, token: int, logprobs: Logprobs | None) -> None:
        assert self.usage is None, "a token after the last word"
        assert choice not in self.finishes, "a token after its choice's finish"
        self.tokens.setdefault(choice, []).append(token)
        self.logprobs.append(logprobs)

    def finish(self, finish: afm_pb2.Finish) -> None:
        assert self.usage is None, "a finish after the last word"
        assert finish.choice not in self.finishes, "a choice finishes twice"
        self.finishes[finish.choice] = finish

    def close(self, usage: afm_pb2.Usage, failure: afm_pb2.Failure | None) -> None:
        assert self.usage is None, "two last words"
        self.usage, self.failure = usage, failure

    @property
    def is_closed(self) -> bool:
        return self.usage is not None

    @property
    def reason(self) -> str:
        """Of the only choice."""
        (finish,) = self.finishes.values()
        return afm_pb2.FinishReason.Name(finish.reason).removeprefix("FINISH_REASON_")

    @property
    def kind(self) -> str:
        assert self.failure is not None
        return afm_pb2.FailureKind.Name(self.failure.kind).removeprefix("FAILURE_KIND_")


class Harness:
    def __init__(self, block_count: int = 128, *, spelling: Mapping[int, bytes] | None = None, **limits: Any) -> None:
        self.model = ScriptedEngine(block_count)
        attached = scripted_engine.attached(block_count, engine=self.model, spelling=spelling, **limits)
        self.pool = BlockPool(block_count, self.model.zero_blocks)
        self.scheduler = Scheduler(self.pool, attached.limits, attached.token_bytes)
        self.suspected = 0
        self.meters = Meters()
        self.engine = Engine(self.model, self.scheduler, lambda: None, self._suspect, self.meters)

    def _suspect(self) -> None:
        self.suspected += 1

    def submit(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 16,
        min_tokens: int = 0,
        stops: Sequence[bytes] = (),
        ending_ids: Sequence[int] = (scripted_engine.EOS,),
        choices: int = 1,
        deadline: float | None = None,
        adapter: int = NO_ADAPTER,
        background: bool = False,
        matcher: Matcher | None = None,
        **rules: Any,
    ) -> Answer:
        answer = Answer()
        admitted = Admitted(
            np.array(prompt, np.int32),
            SamplingRules(**rules),
            StopRules(max_tokens, min_tokens, frozenset(ending_ids), tuple(stops)),
            choices,
            time.monotonic() + 60 if deadline is None else deadline,
            adapter,
            background,
        )
        answer.request = Request(admitted, answer, matcher=matcher)
        self.engine.submit(answer.request)
        return answer

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.engine.take_messages(0)
            self.engine.step()
            self.scheduler.check()

    def run(self, *answers: Answer, most: int = 2000) -> None:
        """Steps until these are answered; with none, until nothing is left to do."""
        for _ in range(most):
            self.step()
            if all(a.is_closed for a in answers) and (answers or not self.scheduler.running + self.scheduler.queued):
                return
        raise AssertionError(f"not answered within {most} steps")

    def ask(self, prompt: Sequence[int], **options: Any) -> Answer:
        answer = self.submit(prompt, **options)
        self.run(answer)
        return answer
