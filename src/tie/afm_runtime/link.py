"""The runtime's own socket: welcomes each connection with a ticket, hears what its reader took, and aborts, and by its
end tells of our death.

A peer that breaks the protocol (a second abort does) loses its connection and what its ticket admitted, nothing else.
There is no answer to send after the welcome.
"""

from __future__ import annotations

import socket
from collections.abc import Collection
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from tie.afm_runtime.tickets import Ticket, Tickets
from tie.api.runtime_link.v1 import runtime_link_pb2
from tie.contracts.limits import MAX_LINK_MESSAGE_BYTES
from tie.servicekit.packet_server import PacketServer

MAX_CONNECTIONS: Final = 1024


class LinkServer:
    """Listens from construction on; `run` is the thread, `stop` ends it and closes everything."""

    def __init__(
        self,
        path: Path,
        tickets: Tickets,
        *,
        bundle_identity: bytes,
        context_length: int,
        admitted_uids: Collection[int] = (),
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._tickets = tickets
        self._identity = bundle_identity
        self._context_length = context_length
        self._held: dict[socket.socket, Ticket] = {}
        self._server = PacketServer(
            path,
            self,
            name="link",
            max_bytes=MAX_LINK_MESSAGE_BYTES,
            max_connections=max_connections,
            admitted_uids=admitted_uids,
        )
        self.run = self._server.run
        self.stop = self._server.stop

    @property
    def connections(self) -> int:
        return self._server.connections

    def opened(self, connection: socket.socket) -> None:
        ticket = self._tickets.issue()
        welcome = runtime_link_pb2.Welcome(
            ticket=ticket.value, bundle_identity=self._identity, context_length=self._context_length
        )
        try:
            connection.send(runtime_link_pb2.FromRuntime(welcome=welcome).SerializeToString(), socket.MSG_NOSIGNAL)
        except OSError:
            self._tickets.void(ticket)
            raise
        self._held[connection] = ticket

    def received(self, connection: socket.socket, packet: bytes) -> bool:
        ticket = self._held[connection]
        try:
            message = runtime_link_pb2.ToRuntime.FromString(packet)
        except DecodeError:
            return False
        match message.WhichOneof("message"):
            case "abort":
                is_first = not ticket.is_void
                self._tickets.void(ticket)
                return is_first
            case "read":
                self._tickets.note_read(ticket, message.read.tokens)
                return True
            case _:
                return False

    def closed(self, connection: socket.socket) -> None:
        self._tickets.void(self._held.pop(connection))
