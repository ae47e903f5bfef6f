"""From our errors to the gRPC status that a caller sees. The only place where the two meet."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from tie.contracts.errors import TieError


def code_of(error: TieError) -> grpc.StatusCode:
    return grpc.StatusCode.__members__.get(error.grpc_status, grpc.StatusCode.INTERNAL)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: TieError) -> NoReturn:
    """Ends the call with the status of `error`; the message is ours and holds nothing that a request brought."""
    await context.abort(code_of(error), str(error))
    raise AssertionError("abort always raises")
