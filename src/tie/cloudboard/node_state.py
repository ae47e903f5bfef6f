"""NodeState: what the node's controller says of the node. Ready is a lease that ends by itself."""

from __future__ import annotations

import asyncio
from typing import Final

import grpc

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.api.cloudboard.v1 import cloudboard_pb2_grpc as rpc
from tie.cloudboard import statuses
from tie.cloudboard.board import Board, NodeState
from tie.cloudboard.custody import Custody
from tie.cloudboard.keyring import Keyring, Workload
from tie.cloudboard.pool import Pool
from tie.contracts.errors import InvalidRequest, NotReady
from tie.contracts.limits import MAX_LEASE_MS
from tie.servicekit import logs

STATES: Final = {pb.STATE_READY: NodeState.READY, pb.STATE_BUSY: NodeState.BUSY, pb.STATE_ERROR: NodeState.ERROR}
IDENTITY_BYTES: Final = (0, 32)
MAX_TEXT_BYTES: Final = 128

_Context = grpc.aio.ServicerContext[pb.PublishStateRequest, pb.PublishStateResponse]


class NodeStateService(rpc.NodeStateServicer):
    """The one rpc, and the timer of the lease."""

    def __init__(self, board: Board, keyring: Keyring, custody: Custody, pool: Pool) -> None:
        self._board, self._keyring, self._custody, self._pool = board, keyring, custody, pool
        self._lapse: asyncio.TimerHandle | None = None

    async def PublishState(  # noqa: N802 - the proto's name
        self, request: pb.PublishStateRequest, context: _Context
    ) -> pb.PublishStateResponse:
        try:
            _check(request)
            state = STATES[request.state]
            if state is NodeState.READY:
                await self._serve(Workload(request.model, request.release, request.bundle_identity))
            self._publish(state, request)
        except (InvalidRequest, NotReady) as error:
            await statuses.abort(context, error)
        return pb.PublishStateResponse(in_flight=self._board.in_flight)

    async def _serve(self, workload: Workload) -> None:
        """Keys vouch for one workload; warm pairs are connected to the runtime that was there before busy or error."""
        if retired := self._keyring.serve(workload):
            logs.logger().info("workload.changed", release=workload.release, count=len(retired))
            await self._custody.retire(retired)
        self._custody.look()
        if self._board.state in (NodeState.BUSY, NodeState.ERROR):
            self._pool.renew()

    def _publish(self, state: NodeState, request: pb.PublishStateRequest) -> None:
        if self._lapse is not None:
            self._lapse.cancel()
            self._lapse = None
        if state is NodeState.READY:
            self._lapse = asyncio.get_running_loop().call_later(request.lease_ms / 1000, self._lapsed)
        if state is not self._board.state:
            logs.logger().info("state.published", state=state.name, previous_state=self._board.state.name)
        self._board.publish(state, request.max_batch_size, request.optimal_batch_size)

    def _lapsed(self) -> None:
        logs.logger().warning("lease.lapsed")
        self._board.publish(NodeState.UNKNOWN)


def _check(request: pb.PublishStateRequest) -> None:
    if request.state not in STATES:
        raise InvalidRequest("state", f"{request.state} is not a state that can be published")
    if request.state == pb.STATE_READY and not 1 <= request.lease_ms <= MAX_LEASE_MS:
        raise InvalidRequest("lease_ms", f"{request.lease_ms} is not between 1 and {MAX_LEASE_MS}")
    if len(request.bundle_identity) not in IDENTITY_BYTES:
        raise InvalidRequest("bundle_identity", f"{len(request.bundle_identity)} bytes, a SHA-256 has 32")
    for field, value in (("model", request.model), ("release", request.release)):
        if len(value.encode()) > MAX_TEXT_BYTES:
            raise InvalidRequest(field, f"{len(value.encode())} bytes, the limit is {MAX_TEXT_BYTES}")
