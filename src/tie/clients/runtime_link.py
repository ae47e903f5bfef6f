"""The connection to the AFM Runtime's own socket: its ticket admits one request, its end is the runtime's death.

What the ticket buys goes over Triton (`inference`). Closing the link, or `abort`, ends the request that used it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from google.protobuf.message import DecodeError

from tie.api.runtime_link.v1 import runtime_link_pb2
from tie.contracts.errors import DeadlinePassed, NotReady, PeerError, PeerGone
from tie.contracts.limits import MAX_LINK_MESSAGE_BYTES, TICKET_BYTES
from tie.servicekit.peers import Peer, credentials

_ABORT: Final = runtime_link_pb2.ToRuntime(abort=runtime_link_pb2.Abort()).SerializeToString()


class RuntimeLink:
    """One welcomed connection. Close it, or use it as a context manager; `abort` may be called from any thread."""

    def __init__(self, connection: socket.socket, welcome: runtime_link_pb2.Welcome) -> None:
        self._connection = connection
        self._closing = threading.Event()
        self._watcher: threading.Thread | None = None
        self.ticket: Final = welcome.ticket
        self.bundle_identity: Final = welcome.bundle_identity
        self.context_length: Final = welcome.context_length
        """Tokens, prompt and completion together."""
        self.runtime: Final[Peer] = credentials(connection)
        """The process that listens there: the stub that runs the engine."""

    @classmethod
    def connect(cls, path: Path, timeout_s: float) -> Self:
        """Connects and reads the welcome.

        Raises NotReady when nothing listens, DeadlinePassed, PeerGone when the runtime has no room for another
        connection or does not admit this uid, PeerError when it breaks the protocol.
        """
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(timeout_s)
            connection.connect(str(path))
            return cls(connection, _read_welcome(connection))
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError | BlockingIOError):
                raise DeadlinePassed(f"the runtime did not welcome a connection within {timeout_s:g} s") from error
            if isinstance(error, ConnectionResetError | BrokenPipeError):
                raise PeerGone("the runtime closed its link at once") from error
            if isinstance(error, OSError):
                raise NotReady(f"no runtime listens: {error.strerror}") from error
            raise

    def fileno(self) -> int:
        return self._connection.fileno()

    def abort(self) -> None:
        """Ends the request of this link's ticket within one step of the engine; nothing happens without one."""
        try:
            self._connection.send(_ABORT, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:  # the runtime does not read: only the end of the connection can tell it
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already gone, and the request with it

    def took(self, tokens: int) -> None:
        """So many tokens of the request were taken by now: without it the runtime holds a long answer back.

        Lost when the runtime is behind; the next one says more.
        """
        message = runtime_link_pb2.ToRuntime(read=runtime_link_pb2.Read(tokens=tokens))
        with contextlib.suppress(OSError):
            self._connection.send(message.SerializeToString(), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def wait_gone(self, timeout_s: float) -> bool:
        """Whether the runtime ended the connection within this time. It sends nothing after its welcome."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN | select.POLLRDHUP)
        return bool(poll.poll(max(0, int(timeout_s * 1000))))

    def watch(self, on_gone: Callable[[], None]) -> None:
        """Calls `on_gone` once, on a thread of its own, when the runtime is gone; not after `close`."""
        if self._watcher is not None:
            raise RuntimeError("this link is being watched already")

        def run() -> None:
            poll = select.poll()
            poll.register(self._connection, select.POLLIN | select.POLLRDHUP)
            poll.poll()
            if not self._closing.is_set():
                on_gone()

        self._watcher = threading.Thread(target=run, name="runtime-link", daemon=True)
        self._watcher.start()

    def close(self) -> None:
        self._closing.set()
        with contextlib.suppress(OSError):  # the runtime was first
            self._connection.shutdown(socket.SHUT_RDWR)  # also wakes the watcher
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join(1.0)
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _read_welcome(connection: socket.socket) -> runtime_link_pb2.Welcome:
    data, _, flags, _ = connection.recvmsg(MAX_LINK_MESSAGE_BYTES)
    if not data:
        raise PeerGone("the runtime closed its link before the welcome")
    message = runtime_link_pb2.FromRuntime()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise PeerError("the runtime's first message on its link cannot be parsed") from error
    if flags & socket.MSG_TRUNC or message.WhichOneof("message") != "welcome":
        raise PeerError("the runtime's first message on its link is not a welcome")
    if len(message.welcome.ticket) != TICKET_BYTES:
        raise PeerError(f"the runtime's ticket has {len(message.welcome.ticket)} bytes, not {TICKET_BYTES}")
    return message.welcome
