"""A failed gRPC call as one of our own errors. A peer's own words are left out: they are not ours to repeat."""

from __future__ import annotations

import grpc

from tie.contracts.errors import DeadlinePassed, NotReady, PeerError


def status_of(error: grpc.RpcError) -> grpc.StatusCode:
    """The status that a failed call ended with; UNKNOWN where the library gives none."""
    return error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN


def typed(error: grpc.RpcError, peer: str, wanted: str, deadline_s: float) -> NotReady | DeadlinePassed | PeerError:
    """What stands for `error`, raised while `peer` was asked for `wanted`."""
    code = status_of(error)
    if code is grpc.StatusCode.UNAVAILABLE:
        return NotReady(f"{peer} does not answer: no {wanted}")
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlinePassed(f"{peer} gave no {wanted} within {deadline_s:g} s")
    return PeerError(f"{peer} refused: no {wanted}: {code.name.lower()}")
