"""What the node's own processes may ask of the runtime, and its answers. Called on the control socket's thread.

Orders go to the engine's inbox and are answered once they lie there; how far they are, status says.
"""

from __future__ import annotations

import time
from typing import Final

import numpy as np

from tie.afm_runtime.engine import Engine
from tie.afm_runtime.intake import Serves
from tie.afm_runtime.meters import Meters, read_metrics
from tie.afm_runtime.paging.pool import BlockPool
from tie.afm_runtime.prefix.keeping import Keeping
from tie.afm_runtime.prefix.states import State
from tie.afm_runtime.scheduling.scheduler import Scheduler
from tie.api.afm_control.v1 import afm_control_pb2 as pb

MAX_DRAIN_MS: Final = 600_000
_STATES: Final = {
    State.NONE: pb.PREFIX_STATE_NONE,
    State.EMPTY: pb.PREFIX_STATE_EMPTY,
    State.WARMING: pb.PREFIX_STATE_WARMING,
    State.SEALED: pb.PREFIX_STATE_SEALED,
    State.FAILED: pb.PREFIX_STATE_FAILED,
}


class Orders:
    def __init__(
        self,
        serves: Serves,
        engine: Engine,
        keeping: Keeping,
        *,
        meters: Meters,
        scheduler: Scheduler,
        pool: BlockPool,
    ) -> None:
        self._serves = serves
        self._engine = engine
        self._keeping = keeping
        self._meters = meters
        self._scheduler = scheduler
        self._pool = pool
        self._prompts = 0

    def answer(self, request: pb.Request) -> pb.Response | None:
        """None for what is no request of the contract."""
        match request.WhichOneof("request"):
            case "status":
                return pb.Response(status=self._status())
            case "warmup":
                return _answered(self._warm(request.warmup))
            case "seal":
                return _answered(self._seal())
            case "drain":
                return _answered(self._drain(request.drain))
            case _:
                return None

    def _status(self) -> pb.StatusResponse:
        """Numbers of this moment, each for itself."""
        warmth, state = self._keeping.warmth, self._keeping.state
        is_warming = state in {State.EMPTY, State.WARMING}
        return pb.StatusResponse(
            bundle_identity=self._serves.bundle_identity,
            metrics=read_metrics(self._meters, self._scheduler, self._pool),
            state=self._runtime_state(),
            prefix=pb.PrefixStatus(
                state=_STATES[state],
                prompts_warmed=warmth.prompts,
                prompts_waiting=self._prompts - warmth.prompts if is_warming else 0,
                blocks=warmth.blocks,
                blocks_left_out=warmth.left_out,
                digest=warmth.digest,
                is_restored=warmth.is_restored,
            ),
        )

    def _runtime_state(self) -> pb.RuntimeState.ValueType:
        if not self._engine.is_draining:
            return pb.RUNTIME_STATE_SERVING
        is_empty = not self._scheduler.running + self._scheduler.queued
        return pb.RUNTIME_STATE_DRAINED if is_empty else pb.RUNTIME_STATE_DRAINING

    def _warm(self, asked: pb.WarmupRequest) -> str:
        if self._keeping.state not in {State.EMPTY, State.WARMING}:
            return f"the prefix pool is {self._keeping.state.name.lower()}: nothing can be warmed"
        limit, vocab = self._serves.longest(1), self._serves.vocab_size
        if not 1 <= len(asked.tokens) <= limit:
            return f"tokens: has {len(asked.tokens)} ids, 1 to {limit} are taken"
        if min(asked.tokens) < 0 or max(asked.tokens) >= vocab:
            return f"tokens: holds an id outside 0 to {vocab - 1}"
        self._prompts += 1
        self._engine.warm(np.array(asked.tokens, np.int32))
        return ""

    def _seal(self) -> str:
        if self._keeping.state not in {State.EMPTY, State.WARMING} or not self._prompts:
            return f"the prefix pool is {self._keeping.state.name.lower()}: nothing was warmed"
        self._engine.seal()
        return ""

    def _drain(self, asked: pb.DrainRequest) -> str:
        if asked.deadline_ms > MAX_DRAIN_MS:
            return f"deadline_ms: is {asked.deadline_ms}, the limit is {MAX_DRAIN_MS}"
        self._engine.drain(time.monotonic() + asked.deadline_ms / 1000)
        return ""


def _answered(refusal: str) -> pb.Response:
    return pb.Response(refused=pb.Refused(message=refusal)) if refusal else pb.Response(accepted=pb.Accepted())
