"""The standard gRPC health service. Its two messages have the wire form of the well-known wrappers, used here.

HealthCheckRequest{string service = 1} reads as StringValue, HealthCheckResponse{enum status = 1} as UInt32Value.
"""

from __future__ import annotations

from typing import Any, Final

import grpc
from google.protobuf.wrappers_pb2 import StringValue, UInt32Value

from tie.cloudboard.board import Board

SERVICE: Final = "grpc.health.v1.Health"
SERVING: Final = 1
NOT_SERVING: Final = 2
SERVICE_UNKNOWN: Final = 3
KNOWN: Final = frozenset({"", "tie.api.cloudboard.v1.CloudBoard"})

_Context = grpc.aio.ServicerContext[StringValue, UInt32Value]


class Health:
    """Answers from the board; `""` is the whole node."""

    def __init__(self, board: Board) -> None:
        self._board = board

    def handler(self) -> grpc.GenericRpcHandler:
        codec: dict[str, Any] = {
            "request_deserializer": StringValue.FromString,
            "response_serializer": UInt32Value.SerializeToString,
        }
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self.check, **codec),
                "Watch": grpc.unary_stream_rpc_method_handler(self.watch, **codec),
            },
        )

    async def check(self, request: StringValue, context: _Context) -> UInt32Value:
        if request.value not in KNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service on this node")
        return UInt32Value(value=self._status(request.value))

    async def watch(self, request: StringValue, context: _Context) -> None:
        """The status now, and again whenever it changes."""
        told = None
        while True:
            if (status := self._status(request.value)) != told:
                await context.write(UInt32Value(value=status))
                told = status
                continue
            await self._board.change()

    def _status(self, service: str) -> int:
        if service not in KNOWN:
            return SERVICE_UNKNOWN
        return SERVING if self._board.is_serving else NOT_SERVING
