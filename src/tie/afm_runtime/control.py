"""The runtime's control socket. The data path cannot reach it, and it cannot reach a request."""

from __future__ import annotations

import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from tie.api.afm_control.v1 import afm_control_pb2
from tie.contracts.limits import MAX_CONTROL_MESSAGE_BYTES
from tie.servicekit.packet_server import PacketServer

MAX_CONNECTIONS: Final = 16


class ControlServer:
    """Listens from construction on; `run` is the thread, `stop` ends it.

    `answer` is called on that thread; None drops the connection.
    """

    def __init__(
        self,
        path: Path,
        answer: Callable[[afm_control_pb2.Request], afm_control_pb2.Response | None],
        *,
        admitted_uids: Collection[int] = (),
    ) -> None:
        self._answer = answer
        server = PacketServer(
            path,
            self,
            name="control",
            max_bytes=MAX_CONTROL_MESSAGE_BYTES,
            max_connections=MAX_CONNECTIONS,
            admitted_uids=admitted_uids,
        )
        self.run = server.run
        self.stop = server.stop

    def opened(self, connection: socket.socket) -> None:
        """Nothing is said before it is asked."""

    def received(self, connection: socket.socket, packet: bytes) -> bool:
        try:
            request = afm_control_pb2.Request.FromString(packet)
        except DecodeError:
            return False
        if (answer := self._answer(request)) is None:
            return False
        try:
            connection.send(answer.SerializeToString(), socket.MSG_NOSIGNAL)
        except OSError:  # gone, or it asks and does not read
            return False
        return True

    def closed(self, connection: socket.socket) -> None:
        """Nothing was kept for it."""
