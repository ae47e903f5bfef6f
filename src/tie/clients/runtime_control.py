"""Asks the AFM Runtime how it does, over its control socket."""

from __future__ import annotations

import socket
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from google.protobuf.message import DecodeError

from tie.api.afm_control.v1 import afm_control_pb2
from tie.contracts.errors import DeadlinePassed, NotReady, PeerError, PeerGone
from tie.contracts.limits import MAX_CONTROL_MESSAGE_BYTES

_STATUS: Final = afm_control_pb2.Request(status=afm_control_pb2.StatusRequest()).SerializeToString()


class RuntimeControl:
    """One connection, for one thread. Close it, or use it as a context manager."""

    def __init__(self, connection: socket.socket, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s

    @classmethod
    def connect(cls, path: Path, timeout_s: float) -> Self:
        """Raises NotReady when no runtime listens there. Every later wait ends after `timeout_s`, too."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            raise NotReady(f"no runtime listens for control: {error.strerror}") from error
        return cls(connection, timeout_s)

    def status(self) -> afm_control_pb2.StatusResponse:
        """Raises DeadlinePassed, PeerGone (also when this uid is not admitted), PeerError."""
        try:
            self._connection.send(_STATUS, socket.MSG_NOSIGNAL)
            data = self._connection.recv(MAX_CONTROL_MESSAGE_BYTES)
        except TimeoutError as error:
            raise DeadlinePassed(f"the runtime did not say how it does within {self._timeout_s:g} s") from error
        except OSError as error:
            raise PeerGone("the runtime ended its control connection") from error
        if not data:
            raise PeerGone("the runtime ended its control connection")
        try:
            answer = afm_control_pb2.Response.FromString(data)
        except DecodeError as error:
            raise PeerError("the runtime's control answer cannot be parsed") from error
        if answer.WhichOneof("response") != "status":
            raise PeerError("the runtime's control answer is no status")
        return answer.status

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
