"""Between cloudboardd and one helper: length u32, kind u8, body, on a socket pair that nobody else holds.

Bodies are opaque here, so that an answer's bytes pass from the helper to gRPC without being parsed again.
"""

from __future__ import annotations

import asyncio
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from tie.contracts.errors import PeerError, PeerGone, TieError
from tie.contracts.limits import MAX_MESSAGE_BYTES

_HEADER: Final = struct.Struct(">IB")
HEADER_BYTES: Final = _HEADER.size
MAX_BODY_BYTES: Final = MAX_MESSAGE_BYTES + 64 * 1024
JOB_ID_BYTES: Final = 16
_BEGIN: Final = struct.Struct(f">{JOB_ID_BYTES}sI")


class Kind(IntEnum):
    WARM = 1  # helper: its binding key; the app is warm
    BEGIN = 2  # cloudboardd: job id, deadline, Parameters
    CHUNK = 3  # cloudboardd: a sealed request chunk
    FINAL_CHUNK = 4
    TERMINATE = 5  # cloudboardd: the client gave up
    RESPONSE = 6  # helper: a serialized InvokeWorkloadResponse
    FINAL_RESPONSE = 7
    REFUSED = 8  # helper: status name, newline, message


def encode(kind: Kind, body: bytes = b"") -> bytes:
    assert len(body) <= MAX_BODY_BYTES, "bodies are bounded where they are made"
    return _HEADER.pack(len(body), kind) + body


def decode_header(header: bytes) -> tuple[Kind, int]:
    """Kind and body length. Raises PeerError for a kind or length that the wire does not know."""
    length, kind = _HEADER.unpack(header)
    if length > MAX_BODY_BYTES:
        raise PeerError(f"pair frame of {length} bytes, the limit is {MAX_BODY_BYTES}")
    try:
        return Kind(kind), length
    except ValueError:
        raise PeerError(f"pair frame of unknown kind {kind}") from None


async def read_frame(reader: asyncio.StreamReader) -> tuple[Kind, bytes]:
    """The next frame. Raises PeerGone at the end of the socket, inside a frame or not."""
    try:
        kind, length = decode_header(await reader.readexactly(HEADER_BYTES))
        return kind, await reader.readexactly(length) if length else b""
    except (asyncio.IncompleteReadError, ConnectionError):
        raise PeerGone("the other end of the pair closed its socket") from None


@dataclass(frozen=True, slots=True)
class Begin:
    """What a helper learns of its request before the first chunk."""

    job_id: bytes
    deadline_ms: int
    parameters: bytes
    """A serialized cloudboard.v1.Parameters."""

    def encode(self) -> bytes:
        return _BEGIN.pack(self.job_id, self.deadline_ms) + self.parameters

    @staticmethod
    def decode(body: bytes) -> Begin:
        if len(body) < _BEGIN.size:
            raise PeerError(f"begin has {len(body)} bytes, the least is {_BEGIN.size}")
        job_id, deadline_ms = _BEGIN.unpack_from(body)
        return Begin(job_id, deadline_ms, body[_BEGIN.size :])


class Refused(TieError):
    """The helper refused a request before dispatch; carries the status that the client is to see."""

    def __init__(self, status: str, message: str) -> None:
        super().__init__(message)
        self.grpc_status = status  # type: ignore[misc]  # the class constant is only a default here

    def encode(self) -> bytes:
        return f"{self.grpc_status}\n{self}".encode()

    @staticmethod
    def decode(body: bytes) -> Refused:
        status, _, message = body.decode("utf-8", "replace").partition("\n")
        return Refused(status, message)
