"""gRPC on a Unix socket that serves only the uids that we admit.

gRPC does not tell a handler who called. So the public socket is ours: its connections are checked by SO_PEERCRED and
then spliced to a gRPC server on a second socket that only our own uid can reach. A peer that is not admitted is
spliced to a server that answers every call with PERMISSION_DENIED: a caller learns why, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast

import grpc

from tie.contracts.errors import NotAdmitted
from tie.servicekit import logs
from tie.servicekit.listening import check_socket_path, listen_unix
from tie.servicekit.peers import admit

_PIECE_BYTES: Final = 64 * 1024
_STOP_GRACE_S: Final = 0.2


@asynccontextmanager
async def serve(
    path: Path, register: Callable[[grpc.aio.Server], None], extra_uids: Collection[int]
) -> AsyncIterator[None]:
    """Serves at `path` what `register` adds, until the context ends."""
    inner, refusing = path.with_name(f".{path.name}"), path.with_name(f".{path.name}-")
    server, refuser = grpc.aio.server(), grpc.aio.server()
    register(server)
    refuser.add_generic_rpc_handlers((_RefuseAll(),))
    _bind_private(server, inner)
    _bind_private(refuser, refusing)
    await server.start()
    await refuser.start()

    async def splice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _splice(reader, writer, inner if _is_admitted(writer, path, extra_uids) else refusing)

    gate = await asyncio.start_unix_server(splice, sock=listen_unix(path))
    try:
        yield
    finally:
        gate.close()
        await server.stop(_STOP_GRACE_S)
        await refuser.stop(_STOP_GRACE_S)


def _bind_private(server: grpc.aio.Server, path: Path) -> None:
    check_socket_path(path)
    path.unlink(missing_ok=True)
    previous = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
    finally:
        os.umask(previous)


def _is_admitted(writer: asyncio.StreamWriter, path: Path, extra_uids: Collection[int]) -> bool:
    # asyncio's TransportSocket stands for the socket and has its getsockopt
    connection = cast(socket.socket, writer.get_extra_info("socket"))
    try:
        admit(connection, extra_uids)
    except NotAdmitted as refusal:
        logs.logger().warning("peer.refused", path=str(path), reason=str(refusal))
        return False
    return True


async def _splice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, target: Path) -> None:
    try:
        inner_reader, inner_writer = await asyncio.open_unix_connection(str(target))
    except OSError:
        writer.close()
        return
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_pump(reader, inner_writer))
            group.create_task(_pump(inner_reader, writer))
    finally:
        writer.close()
        inner_writer.close()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Copies until either side is gone, then closes the other: gRPC has no use for half a connection."""
    with contextlib.suppress(OSError):
        while piece := await source.read(_PIECE_BYTES):
            sink.write(piece)
            await sink.drain()
    sink.close()


class _RefuseAll(grpc.GenericRpcHandler):
    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.stream_stream_rpc_method_handler(_refuse)


async def _refuse(_: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
    await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the caller's uid is not admitted on this socket")
