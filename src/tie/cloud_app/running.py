"""A request with everything around it that may end it: its deadline, the runtime's link, its helper, a forced end."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Final

from tie.api.inference.v1.inference_pb2 import InferenceResponse
from tie.api.job.v1 import job_pb2
from tie.cloud_app.config import Config
from tie.cloud_app.deadline import GRACE_S, PROGRESS_AFTER_S, Clock, Deadline
from tie.cloud_app.dispatch import Dispatch
from tie.cloud_app.failures import told
from tie.cloud_app.outbox import JobSink, Outbox, Sink
from tie.cloud_app.request import RequestRun
from tie.cloud_app.warmup import Warmed
from tie.cloud_app.wire import JobChannel
from tie.contracts.errors import DeadlinePassed, TieError
from tie.servicekit.logs import logger

OVERRUN_EXIT_CODE: Final = 75


class Running:
    """Armed when made: the deadline counts, and the runtime's death is noticed, before the request is whole.

    `run` or `refuse` is called once, on the main thread; the rest may be called from any other.
    """

    def __init__(self, to: JobChannel | Sink, warmed: Warmed, config: Config, deadline: Deadline) -> None:
        self._dispatch = Dispatch(warmed)
        sink = JobSink(to) if isinstance(to, JobChannel) else to
        self._outbox = Outbox(sink, on_reader_gone=self._dispatch.stop)
        self._run = RequestRun(warmed, config, deadline, self._outbox, self._dispatch)
        self._deadline = deadline
        self._is_failed = False
        self._has_begun = False
        self._clock = Clock(deadline, self._tick, self._overrun)
        warmed.link.watch(self._dispatch.runtime_gone)

    def run(self, data: bytes, times: Mapping[str, float]) -> bool:
        """Whether the job ended as the contract has it. `times` go into the summary."""
        self._has_begun = True
        verdict = self._run.run(data)
        return self._end(job_pb2.OUTCOME_INTERNAL_ERROR if self._is_failed else verdict, times)

    def refuse(self, error: TieError, times: Mapping[str, float]) -> bool:
        """The request will not become whole."""
        return self._end(self._run.refuse(error), times)

    def tear_down(self) -> None:
        """The helper asks for an end: what was said so far is flushed and stands."""
        self._dispatch.stop()

    def helper_failed(self) -> None:
        """The helper is gone or makes no sense: nothing it is told matters any more."""
        self._is_failed = True
        self._dispatch.stop()

    def _end(self, verdict: job_pb2.Outcome.ValueType, times: Mapping[str, float]) -> bool:
        self._clock.stop()
        is_good = not self._is_failed and not self._outbox.is_reader_gone  # now: a helper that leaves later is content
        self._outbox.end(verdict)
        logger().info("request.done", **times, **self._run.summary.fields)
        return is_good

    def _tick(self) -> None:
        if self._has_begun:
            self._outbox.progress_after(PROGRESS_AFTER_S)

    def _overrun(self) -> None:
        """The main thread did not notice its deadline, so it will not: say so from here and end the process."""
        last_resort = threading.Timer(GRACE_S, os._exit, (OVERRUN_EXIT_CODE,))  # should a send be what hangs
        last_resort.daemon = True
        last_resort.start()
        error = DeadlinePassed(f"the request did not end within {self._deadline.seconds:g} s")
        self._outbox.send([InferenceResponse(error=told(error))])
        if self._outbox.end(job_pb2.OUTCOME_INTERNAL_ERROR):
            logger().error("request.overrun", deadline_ms=round(self._deadline.seconds * 1000))
            os._exit(OVERRUN_EXIT_CODE)
