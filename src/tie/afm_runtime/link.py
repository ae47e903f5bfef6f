"""The runtime's own socket: welcomes each connection with a ticket, hears aborts, and by its end tells of our death.

A peer that breaks the protocol (a second abort does) loses its connection and what its ticket admitted, nothing else.
There is no answer to send after the welcome, so no peer can make this thread wait.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from tie.afm_runtime.tickets import Ticket, Tickets
from tie.api.runtime_link.v1 import runtime_link_pb2
from tie.contracts.errors import NotAdmitted
from tie.contracts.limits import MAX_LINK_MESSAGE_BYTES
from tie.servicekit import logs
from tie.servicekit.listening import listen_unix
from tie.servicekit.peers import admit

MAX_CONNECTIONS: Final = 1024
_ACCEPT_RETRY_S: Final = 0.1


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
        self._admitted_uids = admitted_uids
        self._max_connections = max_connections
        self._held: dict[socket.socket, Ticket] = {}
        self._log = logs.logger()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._listener = listen_unix(path, socket.SOCK_SEQPACKET)
        self._listener.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stop_read, selectors.EVENT_READ)

    @property
    def connections(self) -> int:
        return len(self._held)

    def run(self) -> None:
        try:
            while True:
                for key, _ in self._selector.select():
                    if key.fileobj == self._stop_read:
                        return
                    if key.fileobj is self._listener:
                        self._accept()
                    elif isinstance(key.fileobj, socket.socket):
                        self._hear(key.fileobj)
        finally:
            self._close()

    def stop(self) -> None:
        """From any thread, once."""
        os.write(self._stop_write, b"\0")

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except BlockingIOError:
            return  # the peer went away again
        except OSError as error:
            # Out of descriptors, most likely: wait a moment instead of spinning on a readable listener.
            self._log.error("link.not_accepted", errno=error.errno)
            time.sleep(_ACCEPT_RETRY_S)
            return
        try:
            peer = admit(connection, self._admitted_uids)
            self._welcome(connection)
        except NotAdmitted:
            self._log.warning("link.refused", reason="uid")
            connection.close()
        except OSError as error:
            self._log.warning("link.refused", reason="gone", errno=error.errno)
            connection.close()
        else:
            self._log.debug("link.opened", pid=peer.pid, count=len(self._held))

    def _welcome(self, connection: socket.socket) -> None:
        if len(self._held) >= self._max_connections:
            self._log.warning("link.refused", reason="full", limit=self._max_connections)
            connection.close()
            return
        connection.setblocking(False)
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
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        try:
            data, _, flags, _ = connection.recvmsg(MAX_LINK_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data, flags = b"", 0
        ticket = self._held[connection]
        if not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC) and _is_abort(data) and not ticket.is_void:
            self._tickets.void(ticket)
        else:
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._tickets.void(self._held.pop(connection))
        connection.close()

    def _close(self) -> None:
        for connection in list(self._held):
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        os.close(self._stop_read)
        os.close(self._stop_write)


def _is_abort(data: bytes) -> bool:
    try:
        return runtime_link_pb2.ToRuntime.FromString(data).WhichOneof("message") == "abort"
    except DecodeError:
        return False
