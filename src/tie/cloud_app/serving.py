"""Performs what `job` decides, over the helper's connection, for this process's one job.

Until the request is whole the main thread reads the helper and watches the runtime's link. While it runs, a thread
reads the helper, so that a teardown, or the helper's death, is noticed at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tie.api.job.v1 import job_pb2
from tie.cloud_app.config import Config
from tie.cloud_app.deadline import GRACE_S, Deadline
from tie.cloud_app.job import Action, State, event_of, step
from tie.cloud_app.wire import JobChannel
from tie.contracts.errors import DeadlinePassed, InvalidRequest, PeerGone, TieError
from tie.contracts.limits import KV_REQUEST_KEY_BYTES
from tie.servicekit.logs import failure_place, logger

if TYPE_CHECKING:
    from tie.cloud_app.running import Running
    from tie.cloud_app.warmup import Warmed

MAX_WARM_S: Final = 3600.0
"""A process that nobody gives a request for so long has been forgotten."""

WarmUp = Callable[[], "Warmed"]


class Serving:
    """Runs once, on the main thread."""

    def __init__(self, channel: JobChannel, warm_up: WarmUp, config: Config) -> None:
        self._channel = channel
        self._warm_up = warm_up
        self._config = config
        self._state = State.COLD
        self._warmed: Warmed | None = None
        self._deadline: Deadline | None = None
        self._running: Running | None = None
        self._request = bytearray()
        self._times: dict[str, float] = {}
        self._since = time.perf_counter()

    def run(self) -> bool:
        """Whether the job ended as the contract has it; if not, the end of the process is the verdict.

        Raises nothing: this is the edge of the process's work.
        """
        try:
            while (action := self._next_action()) is not Action.LEAVE:
                if action is Action.RUN:
                    return self._run_request()
        except TieError as error:
            if isinstance(error, DeadlinePassed) and self._running is not None:
                return self._running.refuse(error, self._times)
            logger().warning("job.failed", error_type=type(error).__name__, reason=str(error), state=self._state.name)
            return False
        except Exception as error:  # the edge of the process
            logger().error("job.failed", **failure_place(error), state=self._state.name)
            return False
        return True

    def _next_action(self) -> Action:
        frame = self._receive()
        self._state, action = step(self._state, event_of(frame))
        match action:
            case Action.WARM_UP:
                self._warmed = self._warm_up()
                self._lap("warmup_ms")
                self._channel.send(job_pb2.JobFrame(warmup_done=job_pb2.WarmupDone()))
            case Action.ARM:
                self._arm(frame.parameters)
            case Action.COLLECT | Action.RUN:
                self._collect(frame.request_chunk.data)
            case _:
                pass
        return action

    def _receive(self) -> job_pb2.JobFrame:
        limit_s = self._deadline.left_s if self._deadline is not None else MAX_WARM_S
        links = [self._warmed.link] if self._state is State.WARM and self._warmed is not None else []
        ready = self._channel.wait(limit_s, *links)
        if ready is None:
            raise DeadlinePassed(f"the helper sent nothing for {limit_s:g} s, the request is not whole")
        if ready is not self._channel:
            raise PeerGone("the runtime is gone before the request came")
        frame = self._channel.receive()
        if frame is None:
            raise PeerGone("the helper is gone")
        return frame

    def _arm(self, parameters: job_pb2.Parameters) -> None:
        from tie.cloud_app.running import Running  # warm-up has imported it

        if len(parameters.kv_request_key) not in (0, KV_REQUEST_KEY_BYTES):
            raise InvalidRequest("kv_request_key", f"must have 0 or {KV_REQUEST_KEY_BYTES} bytes")
        limit_s = self._config.request_timeout_s
        self._deadline = Deadline(min(limit_s, parameters.deadline_ms / 1000) if parameters.deadline_ms else limit_s)
        assert self._warmed is not None, "parameters are taken only once the state is warm"
        self._running = Running(self._channel, self._warmed, self._config, self._deadline)

    def _collect(self, data: bytes) -> None:
        """Past the limit nothing more is kept, but the rest is read: the device is told why."""
        if len(self._request) <= self._config.max_request_bytes:
            self._request += data

    def _run_request(self) -> bool:
        assert self._running is not None, "parameters came before the request"
        self._lap("wait_ms")
        threading.Thread(target=self._watch_helper, args=(self._running,), name="helper", daemon=True).start()
        return self._running.run(bytes(self._request), self._times)

    def _watch_helper(self, running: Running) -> None:
        """Waits for a teardown; any other frame is out of order, and ends the job."""
        try:
            if self._channel.wait(self._config.request_timeout_s + GRACE_S) is None:
                return  # the deadline ends this process, and not for the helper's silence
            frame = self._channel.receive()
            if frame is not None:
                step(self._state, event_of(frame))  # raises unless it is a teardown
                running.tear_down()
                return
        except TieError as error:
            logger().warning("job.failed", error_type=type(error).__name__, reason=str(error), state=self._state.name)
        running.helper_failed()

    def _lap(self, name: str) -> None:
        now = time.perf_counter()
        self._times[name] = round((now - self._since) * 1000, 3)
        self._since = now
