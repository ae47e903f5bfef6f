"""How a request ends: each of its choices by a reason, all of it by one last word, one line in the log, and no block.

On the engine's thread.
"""

from __future__ import annotations

import time
from typing import Final

from tie.afm_runtime.decoding.stops import Reason, Stop
from tie.afm_runtime.meters import Meters
from tie.afm_runtime.scheduling.scheduler import Scheduler
from tie.afm_runtime.sequence import Request, Sequence, State
from tie.api.afm.v1 import afm_pb2
from tie.servicekit import logs

_REASONS: Final = {
    Reason.STOP_TOKEN: afm_pb2.FINISH_REASON_STOP_TOKEN,
    Reason.STOP_STRING: afm_pb2.FINISH_REASON_STOP_STRING,
    Reason.LENGTH: afm_pb2.FINISH_REASON_LENGTH,
    Reason.GRAMMAR: afm_pb2.FINISH_REASON_GRAMMAR,
}


class Ending:
    """Each of these may be called for a request in any state but `finish`, whose sequence runs."""

    def __init__(self, scheduler: Scheduler, meters: Meters) -> None:
        self._scheduler = scheduler
        self._meters = meters
        self._log = logs.logger()

    def finish(self, sequence: Sequence, stop: Stop) -> None:
        """One choice is complete, and with the last of them the request."""
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
            self._meters.requests_finished += 1
            self._close(request, None, "done")

    def cancel(self, request: Request) -> None:
        """Nobody wants it any more; without effect when it has ended."""
        if request.state is State.ENDED:
            return
        unfinished = [sequence.choice for sequence in request.sequences if not sequence.is_finished]
        for choice in unfinished if request.sequences else range(request.admitted.choices):
            request.replies.finish(afm_pb2.Finish(choice=choice, reason=afm_pb2.FINISH_REASON_CANCELLED))
        self._meters.requests_cancelled += 1
        self._close(request, None, "cancelled")

    def fail(self, request: Request, kind: afm_pb2.FailureKind.ValueType, message: str) -> None:
        """`message` is the contract's, never the request's."""
        self._meters.requests_failed += 1
        self._close(request, afm_pb2.Failure(kind=kind, message=message), afm_pb2.FailureKind.Name(kind))

    def fail_grammar(self, request: Request) -> None:
        self.fail(request, afm_pb2.FAILURE_KIND_GRAMMAR, "the grammar exceeds its budget of states and steps")

    def _close(self, request: Request, failure: afm_pb2.Failure | None, outcome: str) -> None:
        prompt, completion = len(request.admitted.prompt), request.completion_tokens
        self._meters.prompt_tokens += prompt
        self._meters.completion_tokens += completion
        self._scheduler.end(request)
        usage = afm_pb2.Usage(prompt=prompt, completion=completion, cached_prefix=request.cached)
        request.replies.close(usage, failure)
        request.admitted.prompt.fill(0)
        now = time.monotonic()
        self._log.info(
            "request.ended",
            outcome=outcome,
            prompt_tokens=prompt,
            completion_tokens=completion,
            choices=request.admitted.choices,
            first_token_ms=round((request.first_token - request.arrived) * 1000, 3) if request.first_token else None,
            total_ms=round((now - request.arrived) * 1000, 3),
            in_flight=self._scheduler.running,
            queued=self._scheduler.queued,
        )
