"""The engine loop: one thread, one inbox, one forward pass a step. Only it touches sequences and blocks.

What fails, fails narrowly: a row whose logits are unusable ends its own request; a step that raises ends the requests
that were running and the loop goes on with a checked pool; a pool that does not add up ends the process (`on_suspect`),
because then nobody can say whose block is whose.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from tie.afm_runtime.decoding.grammar import GrammarFault
from tie.afm_runtime.decoding.stops import Reason, Stop
from tie.afm_runtime.forwarding import NO_ADAPTER, Forwarding, Ids, Step, StepOutcome
from tie.afm_runtime.paging.pool import PoolCorrupt
from tie.afm_runtime.scheduling.dealing import Row
from tie.afm_runtime.scheduling.scheduler import QueueFull, Scheduler
from tie.afm_runtime.sequence import Request, Sequence, State
from tie.api.afm.v1 import afm_pb2
from tie.servicekit import logs

MAX_FAILED_STEPS: Final = 3
"""In a row; after them the model itself is taken for broken."""
IDLE_WAIT_S: Final = 1.0

_REASONS: Final = {
    Reason.STOP_TOKEN: afm_pb2.FINISH_REASON_STOP_TOKEN,
    Reason.STOP_STRING: afm_pb2.FINISH_REASON_STOP_STRING,
    Reason.LENGTH: afm_pb2.FINISH_REASON_LENGTH,
    Reason.GRAMMAR: afm_pb2.FINISH_REASON_GRAMMAR,
}


class _Submit(NamedTuple):
    request: Request


class _Abort(NamedTuple):
    request: Request


class _Stop(NamedTuple):
    pass


class Engine:
    """`submit`, `abort` and `stop` may be called from any thread; `run` is the thread."""

    def __init__(
        self, forwarding: Forwarding, scheduler: Scheduler, flush: Callable[[], None], on_suspect: Callable[[], None]
    ) -> None:
        self._forwarding = forwarding
        self._scheduler = scheduler
        self._flush = flush
        self._on_suspect = on_suspect
        self._inbox: queue.SimpleQueue[_Submit | _Abort | _Stop] = queue.SimpleQueue()
        self._failed_steps = 0
        self._next_deadline = float("inf")
        self._is_checked = True
        self._log = logs.logger()

    def submit(self, request: Request) -> None:
        self._inbox.put(_Submit(request))

    def abort(self, request: Request) -> None:
        """Ends it as cancelled; without effect when it has ended."""
        self._inbox.put(_Abort(request))

    def stop(self) -> None:
        """Ends the loop after the present step; what still runs is answered as draining."""
        self._inbox.put(_Stop())

    def run(self) -> None:
        try:
            while self.take_messages(IDLE_WAIT_S):
                self.step()
            for request in self._scheduler.requests():
                self._fail(request, afm_pb2.FAILURE_KIND_DRAINING, "the runtime stops")
            self._flush()
        except Exception as error:  # the edge of the thread: without it every stream would hang
            reason = str(error) if isinstance(error, PoolCorrupt) else "unexpected"
            self._log.error("engine.suspect", reason=reason, **logs.failure_place(error))
            self._on_suspect()

    def step(self) -> None:
        """One forward pass over what the scheduler plans; nothing when nothing runs."""
        if time.monotonic() >= self._next_deadline:
            self._end_overdue()
        rows = self._constrained(self._scheduler.plan())
        if rows:
            self._is_checked = False
            try:
                outcome = self._forwarding.forward(_step_of(rows))
            except Exception as error:  # the edge of a step: whatever the model raises, other requests go on
                self._fail_step(rows, error)
            else:
                self._failed_steps = 0
                self._apply(rows, outcome)
        elif not self._is_checked:
            self._scheduler.check()
            self._is_checked = True
        self._flush()

    def _constrained(self, rows: list[Row]) -> list[Row]:
        """Finds what grammars allow the rows that sample; a request whose grammar fails there is ended."""
        for row in rows:
            if row.samples and row.sequence.request.state is not State.ENDED:
                try:
                    row.sequence.constrain()
                except GrammarFault:
                    self._fail_grammar(row.sequence.request)
        return [row for row in rows if row.sequence.request.state is not State.ENDED]

    def take_messages(self, wait_s: float) -> bool:
        """Applies what lies in the inbox, waiting for a first message only when there is nothing to run.

        Returns after the last one, so that a step follows and its answers go out; False when told to stop.
        """
        has_work = self._scheduler.running > 0 or self._scheduler.queued > 0 or not self._is_checked
        while True:
            try:
                message = self._inbox.get(block=not has_work, timeout=None if has_work else wait_s)
            except queue.Empty:
                return True
            has_work = True
            match message:
                case _Submit(request):
                    self._accept(request)
                case _Abort(request):
                    self._cancel(request)
                case _Stop():
                    return False

    def _accept(self, request: Request) -> None:
        if request.state is State.ENDED:
            return  # aborted on its way here
        if request.is_unbuildable:
            self._fail_grammar(request)
            return
        if not self._scheduler.fits_ever(request):
            self._fail(request, afm_pb2.FAILURE_KIND_TOO_LONG, "prompt and max_tokens need more cache than there is")
            return
        try:
            self._scheduler.enqueue(request)
        except QueueFull:
            self._fail(request, afm_pb2.FAILURE_KIND_BUSY, f"{self._scheduler.queued} requests are waiting already")
            return
        self._next_deadline = min(self._next_deadline, request.admitted.deadline)

    def _cancel(self, request: Request) -> None:
        if request.state is State.ENDED:
            return
        unfinished = [sequence.choice for sequence in request.sequences if not sequence.is_finished]
        for choice in unfinished if request.sequences else range(request.admitted.choices):
            request.replies.finish(afm_pb2.Finish(choice=choice, reason=afm_pb2.FINISH_REASON_CANCELLED))
        self._close(request, None)

    def _apply(self, rows: list[Row], outcome: StepOutcome) -> None:
        failed = {id(rows[index].sequence.request) for index in outcome.failed_rows}
        for index, (sequence, query_len, samples) in enumerate(rows):
            if sequence.request.state is State.ENDED:
                continue  # an earlier row of the same request failed
            sequence.computed += query_len
            if id(sequence.request) in failed:
                self._fail(sequence.request, afm_pb2.FAILURE_KIND_NOT_FINITE, "a row's logits leave no token to choose")
            elif samples:
                self._deliver(sequence, index, outcome)

    def _deliver(self, sequence: Sequence, index: int, outcome: StepOutcome) -> None:
        request, token = sequence.request, outcome.tokens[index]
        if not request.first_token:
            request.first_token = time.monotonic()
        request.replies.token(sequence.choice, token, outcome.logprobs[index])
        sequence.append(token)
        try:
            stop = sequence.follow(token)
        except GrammarFault:
            self._fail_grammar(request)
            return
        if stop is not None:
            self._finish(sequence, stop)

    def _finish(self, sequence: Sequence, stop: Stop) -> None:
        request = sequence.request
        request.replies.finish(
            afm_pb2.Finish(
                choice=sequence.choice,
                reason=_REASONS[stop.reason],
                stop_index=stop.stop_index,
                stop_byte_offset=stop.byte_offset,
            )
        )
        sequence.is_finished = True
        self._scheduler.end_sequence(sequence)
        if all(sibling.is_finished for sibling in request.sequences):
            self._close(request, None)

    def _fail_grammar(self, request: Request) -> None:
        self._fail(request, afm_pb2.FAILURE_KIND_GRAMMAR, "the grammar exceeds its budget of states and steps")

    def _fail(self, request: Request, kind: afm_pb2.FailureKind.ValueType, message: str) -> None:
        self._close(request, afm_pb2.Failure(kind=kind, message=message))

    def _close(self, request: Request, failure: afm_pb2.Failure | None) -> None:
        prompt, completion = len(request.admitted.prompt), request.completion_tokens
        self._scheduler.end(request)
        request.replies.close(afm_pb2.Usage(prompt=prompt, completion=completion), failure)
        request.admitted.prompt.fill(0)
        now = time.monotonic()
        self._log.info(
            "request.ended",
            outcome=afm_pb2.FailureKind.Name(failure.kind) if failure else "done",
            prompt_tokens=prompt,
            completion_tokens=completion,
            choices=request.admitted.choices,
            first_token_ms=round((request.first_token - request.arrived) * 1000, 3) if request.first_token else None,
            total_ms=round((now - request.arrived) * 1000, 3),
            in_flight=self._scheduler.running,
            queued=self._scheduler.queued,
        )

    def _fail_step(self, rows: list[Row], error: Exception) -> None:
        self._failed_steps += 1
        self._log.error("engine.step_failed", count=self._failed_steps, **logs.failure_place(error))
        for row in rows:
            # Whatever the failed pass wrote lies within the blocks of its rows: count it as written.
            row.sequence.computed += row.query_len
        for row in rows:
            if row.sequence.request.state is not State.ENDED:
                self._fail(row.sequence.request, afm_pb2.FAILURE_KIND_INTERNAL, "the step that served this failed")
        self._scheduler.check()
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise PoolCorrupt(f"{self._failed_steps} steps failed one after another")

    def _end_overdue(self) -> None:
        now = time.monotonic()
        self._next_deadline = float("inf")
        for request in self._scheduler.requests():
            if request.admitted.deadline <= now:
                self._fail(request, afm_pb2.FAILURE_KIND_DEADLINE, "not finished before its deadline")
            else:
                self._next_deadline = min(self._next_deadline, request.admitted.deadline)


def _step_of(rows: list[Row]) -> Step:
    sequences = [row.sequence for row in rows]
    tables = [sequence.table for sequence in sequences]
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(table) for table in tables], out=offsets[1:])
    return Step(
        token_ids=np.concatenate([s.tokens[s.computed : s.computed + query_len] for s, query_len, _ in rows]),
        query_lens=np.array([row.query_len for row in rows], np.int32),
        context_lens=np.array([row.sequence.computed + row.query_len for row in rows], np.int32),
        block_tables=np.concatenate(tables),
        block_table_offsets=offsets,
        sample=np.array([row.samples for row in rows], np.bool_),
        sampling=[row.sequence.sampling() if row.samples else None for row in rows],
        adapters=_adapters_of(sequences),
    )


def _adapters_of(sequences: list[Sequence]) -> Ids | None:
    adapters = [sequence.request.admitted.adapter for sequence in sequences]
    return np.array(adapters, np.int32) if any(adapter != NO_ADAPTER for adapter in adapters) else None
