"""A socket for messages of one packet each (SOCK_SEQPACKET), served by one thread that no peer can make wait.

Peers are admitted by uid; who sends a packet that is too long, or passes descriptors, loses its connection. What
packets mean is the `Peers` object's matter.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol

from tie.contracts.errors import NotAdmitted
from tie.servicekit import logs
from tie.servicekit.listening import listen_unix
from tie.servicekit.peers import admit

_ACCEPT_RETRY_S: Final = 0.1


class Peers(Protocol):
    """What is done for connections, all on the server's thread. Connections do not block."""

    def opened(self, connection: socket.socket) -> None:
        """Admitted. Raises OSError when it is gone already; then `closed` is not called."""

    def received(self, connection: socket.socket, packet: bytes) -> bool:
        """One whole packet; whether the connection may stay."""

    def closed(self, connection: socket.socket) -> None:
        """It is gone, or is being dropped."""


class PacketServer:
    """Listens from construction on; `run` is the thread, `stop` ends it and closes everything.

    `name` stands in its events in the log.
    """

    def __init__(
        self,
        path: Path,
        peers: Peers,
        *,
        name: str,
        max_bytes: int,
        max_connections: int,
        admitted_uids: Collection[int] = (),
    ) -> None:
        self._peers = peers
        self._max_bytes = max_bytes
        self._max_connections = max_connections
        self._admitted_uids = admitted_uids
        self._held: set[socket.socket] = set()
        self._log = logs.logger().bind(name=name)
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
            self._log.error("peer.not_accepted", errno=error.errno)
            time.sleep(_ACCEPT_RETRY_S)
            return
        try:
            peer = admit(connection, self._admitted_uids)
            self._open(connection)
        except NotAdmitted:
            self._log.warning("peer.refused", reason="uid")
            connection.close()
        except OSError as error:
            self._log.warning("peer.refused", reason="gone", errno=error.errno)
            connection.close()
        else:
            self._log.debug("peer.opened", pid=peer.pid, count=len(self._held))

    def _open(self, connection: socket.socket) -> None:
        if len(self._held) >= self._max_connections:
            self._log.warning("peer.refused", reason="full", limit=self._max_connections)
            connection.close()
            return
        connection.setblocking(False)
        self._peers.opened(connection)
        self._held.add(connection)
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: socket.socket) -> None:
        try:
            packet, _, flags, _ = connection.recvmsg(self._max_bytes)
        except BlockingIOError:
            return
        except OSError:
            packet, flags = b"", 0
        is_whole = bool(packet) and not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC)
        if not (is_whole and self._peers.received(connection, packet)):
            self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        self._held.remove(connection)
        self._peers.closed(connection)
        connection.close()

    def _close(self) -> None:
        for connection in list(self._held):
            self._drop(connection)
        self._selector.close()
        self._listener.close()
        os.close(self._stop_read)
        os.close(self._stop_write)
