"""Tells cloudboardd what state the node is in: ready is a lease that must be renewed, busy and error are not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import grpc

from tie.api.cloudboard.v1 import cloudboard_pb2, cloudboard_pb2_grpc
from tie.clients import rpc_errors
from tie.contracts.limits import MAX_LEASE_MS

_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


@dataclass(frozen=True, slots=True)
class ActiveWorkload:
    """What the node serves, as cloudboardd publishes it."""

    model: str
    release: str
    bundle_identity: bytes
    max_batch_size: int
    optimal_batch_size: int


class NodeStateClient:
    """One connection to cloudboardd's state socket. Used from one thread; close it, or use it as a context manager."""

    def __init__(self, socket_path: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", options=_OPTIONS)
        self._stub = cloudboard_pb2_grpc.NodeStateStub(self._channel)

    def publish_ready(self, workload: ActiveWorkload, lease_ms: int, deadline_s: float) -> int:
        """Takes traffic until the lease ends; the number of requests in flight comes back.

        Raises NotReady (cloudboardd does not answer), DeadlinePassed or PeerError (it refuses).
        """
        assert 0 < lease_ms <= MAX_LEASE_MS
        request = _request(cloudboard_pb2.STATE_READY, workload)
        request.lease_ms = lease_ms
        return self._publish(request, deadline_s)

    def publish_busy(self, workload: ActiveWorkload, deadline_s: float) -> int:
        """Admits nothing new; what runs goes on. Raises as publish_ready does."""
        return self._publish(_request(cloudboard_pb2.STATE_BUSY, workload), deadline_s)

    def publish_error(self, workload: ActiveWorkload, deadline_s: float) -> int:
        """Takes the node out of routing. Raises as publish_ready does."""
        return self._publish(_request(cloudboard_pb2.STATE_ERROR, workload), deadline_s)

    def _publish(self, request: cloudboard_pb2.PublishStateRequest, deadline_s: float) -> int:
        try:
            answer: cloudboard_pb2.PublishStateResponse = self._stub.PublishState(request, timeout=deadline_s)
        except grpc.RpcError as error:
            raise rpc_errors.typed(error, "cloudboardd", "acknowledged state", deadline_s) from error
        return answer.in_flight

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _request(state: cloudboard_pb2.State.ValueType, workload: ActiveWorkload) -> cloudboard_pb2.PublishStateRequest:
    return cloudboard_pb2.PublishStateRequest(
        state=state,
        model=workload.model,
        release=workload.release,
        bundle_identity=workload.bundle_identity,
        max_batch_size=workload.max_batch_size,
        optimal_batch_size=workload.optimal_batch_size,
    )
