"""The helper's two sockets, as frames: to cloudboardd (pair_wire) and to the app (job/v1). Blocking, with deadlines."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from tie.api.cloudboard.v1 import cloudboard_pb2
from tie.api.job.v1 import job_pb2
from tie.cloudboard import pair_wire
from tie.cloudboard.pair_wire import Kind
from tie.contracts.errors import DeadlinePassed, PeerError, PeerGone
from tie.contracts.limits import MAX_FRAME_BYTES

_RECEIVE_BYTES: Final = 256 * 1024
_LENGTH_BYTES: Final = 4
_WRITE_LIMIT_S: Final = 60.0
"""The longest that a peer may leave a write of ours unread; cloudboardd gives up on a slow client before that."""


class _FramedSocket:
    """A stream socket and what of the next frame has arrived."""

    def __init__(self, connection: socket.socket, name: str) -> None:
        connection.settimeout(_WRITE_LIMIT_S)
        self._connection, self._name = connection, name
        self._pending = bytearray()

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def fill(self) -> None:
        """Reads what is there. Raises PeerGone at the end of the socket."""
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except OSError:
            data = b""
        if not data:
            raise PeerGone(f"{self._name} closed its socket")
        self._pending += data

    def drop_until_closed(self, deadline: float) -> None:
        """Reads and forgets until the peer closes or `deadline` is there.

        Closing with bytes unread would reset the connection, and the peer lose what it had not read yet.
        """
        with contextlib.suppress(PeerGone, OSError):
            while select.select([self._connection], [], [], max(0.0, deadline - time.monotonic()))[0]:
                self.fill()
                self._pending.clear()

    def _write(self, data: bytes) -> None:
        try:
            self._connection.sendall(data)
        except TimeoutError:
            raise DeadlinePassed(f"{self._name} did not read for {_WRITE_LIMIT_S} s") from None
        except OSError:
            raise PeerGone(f"{self._name} closed its socket") from None

    def _take(self, start: int, end: int) -> bytes:
        body = bytes(self._pending[start:end])
        del self._pending[:end]
        return body


class PairLink(_FramedSocket):
    """To cloudboardd."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, "cloudboardd")

    def next(self) -> tuple[Kind, bytes] | None:
        """A frame that is whole by now. Raises PeerError for bytes that are no frame."""
        if len(self._pending) < pair_wire.HEADER_BYTES:
            return None
        kind, length = pair_wire.decode_header(bytes(self._pending[: pair_wire.HEADER_BYTES]))
        end = pair_wire.HEADER_BYTES + length
        return (kind, self._take(pair_wire.HEADER_BYTES, end)) if len(self._pending) >= end else None

    def send(self, kind: Kind, body: bytes) -> None:
        """Raises PeerGone or DeadlinePassed."""
        self._write(pair_wire.encode(kind, body))

    def end(self, limit_s: float) -> None:
        """Nothing follows; waits until cloudboardd has taken what was sent."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
        self.drop_until_closed(time.monotonic() + limit_s)

    def send_response(self, sealed: bytes, is_final: bool) -> None:
        """A response chunk, already in the form in which gRPC sends it."""
        chunk = cloudboard_pb2.SealedChunk(encrypted_payload=sealed, is_final=is_final)
        response = cloudboard_pb2.InvokeWorkloadResponse(response_chunk=chunk)
        self.send(Kind.FINAL_RESPONSE if is_final else Kind.RESPONSE, response.SerializeToString())


class AppLink(_FramedSocket):
    """To tie-cloud-app."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection, "the app")

    @staticmethod
    def connect(path: Path, limit_s: float) -> AppLink:
        """Raises PeerGone when nobody listens there."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(limit_s)
        try:
            connection.connect(str(path))
        except OSError as error:
            connection.close()
            raise PeerGone(f"the app's listener does not answer: errno {error.errno}") from None
        return AppLink(connection)

    def next(self) -> job_pb2.JobFrame | None:
        """A frame that is whole by now. Raises PeerError for bytes that are no frame."""
        if len(self._pending) < _LENGTH_BYTES:
            return None
        length = int.from_bytes(self._pending[:_LENGTH_BYTES], "big")
        if length > MAX_FRAME_BYTES:
            raise PeerError(f"the app sent a frame of {length} bytes, the limit is {MAX_FRAME_BYTES}")
        if len(self._pending) < _LENGTH_BYTES + length:
            return None
        try:
            return job_pb2.JobFrame.FromString(self._take(_LENGTH_BYTES, _LENGTH_BYTES + length))
        except DecodeError:
            raise PeerError("the app sent a frame that is not a JobFrame") from None

    def send(self, frame: job_pb2.JobFrame) -> None:
        """Raises PeerGone or DeadlinePassed."""
        body = frame.SerializeToString()
        self._write(len(body).to_bytes(_LENGTH_BYTES, "big") + body)


class Both:
    """Waits on both sockets at once, so that the end of either is seen at any time."""

    def __init__(self, pair: PairLink, app: AppLink) -> None:
        self.pair, self.app = pair, app
        self._poll = select.poll()
        self._poll.register(pair, select.POLLIN)
        self._poll.register(app, select.POLLIN)

    def wait(self, deadline: float, waited_for: str) -> tuple[bool, bool]:
        """(cloudboardd, app): which can be read. Raises DeadlinePassed at `deadline`, a monotonic time."""
        remaining_ms = (deadline - time.monotonic()) * 1000
        ready = {descriptor for descriptor, _ in self._poll.poll(max(0.0, remaining_ms))}
        if not ready:
            raise DeadlinePassed(f"waited too long for {waited_for}")
        return self.pair.fileno() in ready, self.app.fileno() in ready
