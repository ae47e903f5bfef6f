"""The engine loop: one thread, one inbox, one forward pass a step. Only it touches sequences and blocks.

A step is planned, advanced through the model while grammars say what they allow, sampled, and delivered.
What fails, fails narrowly: a row whose logits are unusable ends its own request; a step that raises ends the requests
that were running and the loop goes on with a checked pool; a pool that does not add up ends the process (`on_suspect`),
because then nobody can say whose block is whose.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from tie.afm_runtime.batching import step_of
from tie.afm_runtime.decoding.grammar import GrammarFault
from tie.afm_runtime.decoding.masking import Found, Masking
from tie.afm_runtime.ending import Ending
from tie.afm_runtime.forwarding import Forwarding, Ids, StepOutcome
from tie.afm_runtime.meters import Lap, Meters
from tie.afm_runtime.paging.pool import PoolCorrupt
from tie.afm_runtime.prefix.keeping import Keeping
from tie.afm_runtime.scheduling.dealing import Row
from tie.afm_runtime.scheduling.scheduler import QueueFull, Scheduler
from tie.afm_runtime.sequence import Request, Sequence, State
from tie.api.afm.v1 import afm_pb2
from tie.servicekit import logs

MAX_FAILED_STEPS: Final = 3
"""In a row; after them the model itself is taken for broken."""
IDLE_WAIT_S: Final = 1.0
_RECYCLED: Final = "the runtime is being recycled"
STALL_S: Final = 30.0
"""How long a reader may take nothing, once as much waits for it as is kept (`sequence.MOST_UNREAD`)."""
STALL_WANTED_S: Final = 5.0
"""As much, when other requests wait for the blocks."""


class _Submit(NamedTuple):
    request: Request


class _Abort(NamedTuple):
    request: Request


class _Read(NamedTuple):
    request: Request
    tokens: int


class _Drain(NamedTuple):
    deadline: float


class _Warm(NamedTuple):
    prompt: Ids


class _Seal(NamedTuple):
    pass


class _Stop(NamedTuple):
    pass


_Message = _Submit | _Abort | _Read | _Drain | _Warm | _Seal | _Stop


class Engine:
    """`run` is the thread; whatever puts a message into the inbox may be called from any other."""

    def __init__(
        self,
        forwarding: Forwarding,
        scheduler: Scheduler,
        flush: Callable[[], None],
        on_suspect: Callable[[], None],
        meters: Meters | None = None,
        keeping: Keeping | None = None,
    ) -> None:
        self._forwarding = forwarding
        self._scheduler = scheduler
        self._flush = flush
        self._on_suspect = on_suspect
        self._meters = meters or Meters()
        self._ending = Ending(scheduler, self._meters)
        self._masking = Masking()
        self._keeping = keeping
        self._inbox: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self._drain_deadline: float | None = None
        self._failed_steps = 0
        self._next_look = float("inf")
        self._is_checked = True
        self._is_idle = True
        self._log = logs.logger()

    def submit(self, request: Request) -> None:
        self._inbox.put(_Submit(request))

    def abort(self, request: Request) -> None:
        """Ends it as cancelled; without effect when it has ended."""
        self._inbox.put(_Abort(request))

    def read(self, request: Request, tokens: int) -> None:
        """Its reader has taken so many of its tokens by now; fewer than before says nothing new."""
        self._inbox.put(_Read(request, tokens))

    def drain(self, deadline: float) -> None:
        """Admits nothing any more, and ends what runs then (time.monotonic()). An earlier deadline wins."""
        self._inbox.put(_Drain(deadline))

    def warm(self, prompt: Ids) -> None:
        """Computes a registered prompt into the prefix pool, between two steps."""
        self._inbox.put(_Warm(prompt))

    def seal(self) -> None:
        """Ends the warming."""
        self._inbox.put(_Seal())

    @property
    def is_draining(self) -> bool:
        return self._drain_deadline is not None

    def stop(self) -> None:
        """Ends the loop after the present step; what still runs is answered as draining."""
        self._inbox.put(_Stop())

    def run(self) -> None:
        try:
            while self.take_messages(IDLE_WAIT_S):
                self.step()
            for request in self._scheduler.requests():
                self._ending.fail(request, afm_pb2.FAILURE_KIND_DRAINING, "the runtime stops")
            self._flush()
        except Exception as error:  # the edge of the thread: without it every stream would hang
            reason = str(error) if isinstance(error, PoolCorrupt) else "unexpected"
            self._log.error("engine.suspect", reason=reason, **logs.failure_place(error))
            self._on_suspect()
        finally:
            self._masking.close()

    def step(self) -> None:
        """One forward pass over what the scheduler plans; nothing when nothing runs."""
        if time.monotonic() >= self._next_look:
            self._end_overdue()
        lap = Lap()
        rows = self._scheduler.plan()
        self._is_idle = not rows
        if rows:
            self._is_checked = False
            self._run(rows, lap)
            self._meters.deliver_s += lap()
        elif not self._is_checked:
            self._scheduler.check()
            self._is_checked = True
        self._flush()

    def _run(self, rows: list[Row], lap: Lap) -> None:
        try:
            found, outcome = self._forward(rows, lap)
        except Exception as error:  # the edge of a step: whatever the model raises, other requests go on
            self._fail_step(rows, error)
        else:
            self._failed_steps = 0
            self._apply(rows, found, outcome)

    def _forward(self, rows: list[Row], lap: Lap) -> tuple[Found, StepOutcome]:
        """What grammars allow is found while the model advances."""
        meters = self._meters
        meters.count_rows(len(rows))
        step = step_of(rows)
        self._masking.begin([row.sequence.matcher if row.samples else None for row in rows])
        meters.plan_s += lap()
        try:
            self._forwarding.advance(step)
        finally:
            meters.model_s += (advanced_s := lap())
            found = self._masking.take()
            meters.mask_wait_s += lap()
        meters.count_masks(found.seconds)
        outcome = self._forwarding.sample(found.masks)
        meters.model_s += (sampled_s := lap())
        self._scheduler.pace.note(len(step.token_ids), advanced_s + sampled_s)
        return found, outcome

    def take_messages(self, wait_s: float) -> bool:
        """Applies what lies in the inbox, waiting for a first message only when there is nothing to run.

        Returns after the last one, so that a step follows and its answers go out; False when told to stop.
        """
        has_work = not (self._is_idle and self._is_checked)
        wait_s = min(wait_s, max(0.0, self._next_look - time.monotonic()))
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
                    self._ending.cancel(request)
                case _Read(request, tokens):
                    _note_read(request, tokens)
                case _Drain(deadline):
                    self._begin_drain(deadline)
                case _Warm(prompt):
                    assert self._keeping is not None, "whoever asks has one"
                    self._keeping.warm(prompt)
                    self._is_checked = False
                case _Seal():
                    assert self._keeping is not None, "whoever asks has one"
                    self._keeping.seal()
                    self._is_checked = False
                case _Stop():
                    return False

    def _accept(self, request: Request) -> None:
        if request.state is State.ENDED:
            return  # aborted on its way here
        if self._drain_deadline is not None:
            self._ending.fail(request, afm_pb2.FAILURE_KIND_DRAINING, _RECYCLED)
            return
        if request.is_unbuildable:
            self._ending.fail_grammar(request)
            return
        if not self._scheduler.fits_ever(request):
            self._ending.fail(
                request, afm_pb2.FAILURE_KIND_TOO_LONG, "prompt and max_tokens need more cache than there is"
            )
            return
        try:
            self._scheduler.enqueue(request)
        except QueueFull:
            self._ending.fail(
                request, afm_pb2.FAILURE_KIND_BUSY, f"{self._scheduler.queued} requests are waiting already"
            )
            return
        self._meters.requests_accepted += 1
        self._next_look = min(self._next_look, request.admitted.deadline)

    def _begin_drain(self, deadline: float) -> None:
        self._drain_deadline = min(deadline, self._drain_deadline or deadline)
        self._next_look = min(self._next_look, self._drain_deadline)
        self._log.info("engine.draining", in_flight=self._scheduler.running, queued=self._scheduler.queued)

    def _apply(self, rows: list[Row], found: Found, outcome: StepOutcome) -> None:
        failed = {id(rows[index].sequence.request) for index in outcome.failed_rows}
        for sequence, query_len, _ in rows:
            # All first: a request that ends here returns the blocks of every choice, as far as they were written.
            self._meters.tokens_computed += query_len
            sequence.computed += query_len
        for index, (sequence, _, samples) in enumerate(rows):
            request = sequence.request
            if request.state is State.ENDED:
                continue  # an earlier row of the same request failed
            if index in found.faulty:
                self._ending.fail_grammar(request)
            elif id(request) in failed:
                self._ending.fail(request, afm_pb2.FAILURE_KIND_NOT_FINITE, "a row's logits leave no token to choose")
            elif samples:
                self._deliver(sequence, index, outcome)

    def _deliver(self, sequence: Sequence, index: int, outcome: StepOutcome) -> None:
        request, token = sequence.request, outcome.tokens[index]
        if not request.first_token:
            request.first_token = time.monotonic()
        request.replies.token(sequence.choice, token, outcome.logprobs[index])
        sequence.append(token)
        request.sent += 1
        if request.is_held and request.stalled_at is None:
            request.stalled_at = time.monotonic()
            self._next_look = min(self._next_look, request.stalled_at + STALL_WANTED_S)
        try:
            stop = sequence.follow(token)
        except GrammarFault:
            self._ending.fail_grammar(request)
            return
        if stop is not None:
            self._ending.finish(sequence, stop)

    def _fail_step(self, rows: list[Row], error: Exception) -> None:
        self._failed_steps += 1
        self._meters.steps_failed += 1
        self._log.error("engine.step_failed", count=self._failed_steps, **logs.failure_place(error))
        for row in rows:
            # Whatever the failed pass wrote lies within the blocks of its rows: count it as written.
            row.sequence.computed += row.query_len
        for row in rows:
            if row.sequence.request.state is not State.ENDED:
                self._ending.fail(
                    row.sequence.request, afm_pb2.FAILURE_KIND_INTERNAL, "the step that served this failed"
                )
        self._scheduler.check()
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise PoolCorrupt(f"{self._failed_steps} steps failed one after another")

    def _end_overdue(self) -> None:
        """Ends requests past their deadline or the drain's, and those whose readers stall."""
        now = time.monotonic()
        if self._drain_deadline is not None and self._drain_deadline <= now:
            for request in list(self._scheduler.requests()):
                self._ending.fail(request, afm_pb2.FAILURE_KIND_DRAINING, _RECYCLED)
        patience = STALL_WANTED_S if self._scheduler.queued else STALL_S
        is_busy = self._scheduler.running + self._scheduler.queued > 0
        self._next_look = self._drain_deadline if is_busy and self._drain_deadline is not None else float("inf")
        for request in self._scheduler.requests():
            if request.admitted.deadline <= now:
                self._ending.fail(request, afm_pb2.FAILURE_KIND_DEADLINE, "not finished before its deadline")
            elif request.stalled_at is not None and request.stalled_at + patience <= now:
                self._meters.requests_stalled += 1
                self._ending.fail(request, afm_pb2.FAILURE_KIND_STALLED, f"its reader took nothing for {patience:g} s")
            else:
                stall = float("inf") if request.stalled_at is None else max(now, request.stalled_at) + STALL_WANTED_S
                self._next_look = min(self._next_look, request.admitted.deadline, stall)


def _note_read(request: Request, tokens: int) -> None:
    if (read := min(tokens, request.sent)) > request.read:
        request.read = read
        request.stalled_at = time.monotonic() if request.is_held else None
