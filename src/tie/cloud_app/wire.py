"""Frames between the helper and this process: four bytes of length, big-endian, and a JobFrame.

The reading side belongs to one thread at a time; any thread may send. Order is `job`'s business.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from typing import Final, Protocol

from google.protobuf.message import DecodeError

from tie.api.job.v1 import job_pb2
from tie.contracts.errors import DeadlinePassed, PeerError, PeerGone
from tie.contracts.limits import MAX_FRAME_BYTES

LENGTH: Final = struct.Struct(">I")
FRAME_TIMEOUT_S: Final = 30.0
"""For the rest of a frame that has begun, and for the helper to take one that is sent."""


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class JobChannel:
    """One job's socket. Does not own it: the process ends with it."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(FRAME_TIMEOUT_S)
        self._connection = connection
        self._sending = threading.Lock()

    def wait(self, timeout_s: float, *others: HasFileno) -> HasFileno | None:
        """What can be read first: this channel or one of `others`; None when nothing can within `timeout_s`."""
        poll = select.poll()
        watched: dict[int, HasFileno] = {self._connection.fileno(): self} | {other.fileno(): other for other in others}
        for fd in watched:
            poll.register(fd, select.POLLIN | select.POLLRDHUP)
        ready = [fd for fd, _ in poll.poll(max(0, int(timeout_s * 1000)))]
        return watched[ready[0]] if ready else None

    def fileno(self) -> int:
        return self._connection.fileno()

    def receive(self) -> job_pb2.JobFrame | None:
        """The next frame; None when the helper ended the connection between two frames.

        Raises PeerError (empty, oversized or malformed frame, or one cut short), DeadlinePassed.
        """
        head = self._read(LENGTH.size)
        if head is None:
            return None
        (size,) = LENGTH.unpack(head)
        if not 1 <= size <= MAX_FRAME_BYTES:
            raise PeerError(f"the helper announced a frame of {size} bytes, the limit is {MAX_FRAME_BYTES}")
        body = self._read(size)
        if body is None:
            raise PeerError("the helper ended the connection inside a frame")
        try:
            frame = job_pb2.JobFrame.FromString(body)
        except DecodeError as error:
            raise PeerError("the helper sent a frame that cannot be parsed") from error
        if frame.WhichOneof("frame") is None:
            raise PeerError("the helper sent a frame of no known kind")
        return frame

    def send(self, frame: job_pb2.JobFrame) -> None:
        """Raises PeerGone, DeadlinePassed."""
        body = frame.SerializeToString()
        try:
            with self._sending:
                self._connection.sendall(LENGTH.pack(len(body)) + body)
        except TimeoutError as error:
            raise DeadlinePassed(f"the helper did not take a frame within {FRAME_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise PeerGone("the helper is gone") from error

    def _read(self, size: int) -> bytes | None:
        """Exactly `size` bytes; None at the connection's end before the first."""
        data = bytearray()
        while len(data) < size:
            try:
                part = self._connection.recv(min(size - len(data), 1 << 20))
            except TimeoutError as error:
                raise DeadlinePassed(f"the helper did not complete a frame within {FRAME_TIMEOUT_S:g} s") from error
            except OSError as error:
                raise PeerGone("the helper is gone") from error
            if not part and data:
                raise PeerError("the helper ended the connection inside a frame")
            if not part:
                return None
            data += part
        return bytes(data)
