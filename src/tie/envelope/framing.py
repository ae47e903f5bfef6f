"""What the chunks carry: 4-byte big-endian length before each protobuf message.

A request is one message. A response is a 16-byte UUID, then messages, then a summary that is the only content of the
final chunk. The summary is a `job.v1.EndJob`, whose size is the same for every outcome.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from google.protobuf.message import DecodeError

from tie.api.job.v1 import job_pb2
from tie.contracts.limits import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES
from tie.envelope.refusal import EnvelopeRefused

LENGTH_BYTES: Final = 4
UUID_BYTES: Final = 16


class Outcome(IntEnum):
    """How a request ended, as the sealed summary says."""

    OK = job_pb2.OUTCOME_OK
    UNAUTHENTICATED = job_pb2.OUTCOME_UNAUTHENTICATED
    INTERNAL_ERROR = job_pb2.OUTCOME_INTERNAL_ERROR
    INVALID_REQUEST = job_pb2.OUTCOME_INVALID_REQUEST


def frame(message: bytes) -> bytes:
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


def summary_frame(outcome: Outcome) -> bytes:
    return frame(job_pb2.EndJob(outcome=outcome.value).SerializeToString())


def unframe_request(opened: bytes | bytearray) -> bytes:
    """The one message of a request. Raises EnvelopeRefused when there is less, more, or too much."""
    if len(opened) < LENGTH_BYTES:
        raise EnvelopeRefused(f"request has {len(opened)} bytes, its length alone takes {LENGTH_BYTES}")
    length = int.from_bytes(opened[:LENGTH_BYTES], "big")
    if length > MAX_REQUEST_BYTES:
        raise EnvelopeRefused(f"request frame says {length} bytes, the limit is {MAX_REQUEST_BYTES}")
    if length != len(opened) - LENGTH_BYTES:
        raise EnvelopeRefused(f"request frame says {length} bytes, {len(opened) - LENGTH_BYTES} follow")
    return bytes(memoryview(opened)[LENGTH_BYTES:])


@dataclass(slots=True)
class ResponseParser:
    """Reads a response's opened chunks in order, however messages were cut into chunks."""

    uuid: bytes | None = None
    outcome: Outcome | None = None
    _pending: bytearray = field(default_factory=bytearray, repr=False)

    def feed(self, data: bytes, is_final: bool) -> list[bytes]:
        """The messages that are complete by now. Raises EnvelopeRefused for a shape that the contract does not know."""
        if is_final:
            self._finish(data)
            return []
        self._pending += data
        if self.uuid is None:
            if len(self._pending) < UUID_BYTES:
                return []
            self.uuid = bytes(self._pending[:UUID_BYTES])
            del self._pending[:UUID_BYTES]
        return self._complete_messages()

    def _complete_messages(self) -> list[bytes]:
        messages, start = [], 0
        while len(self._pending) - start >= LENGTH_BYTES:
            length = int.from_bytes(self._pending[start : start + LENGTH_BYTES], "big")
            if length > MAX_MESSAGE_BYTES:
                raise EnvelopeRefused(f"response frame says {length} bytes, the limit is {MAX_MESSAGE_BYTES}")
            end = start + LENGTH_BYTES + length
            if len(self._pending) < end:
                break
            messages.append(bytes(self._pending[start + LENGTH_BYTES : end]))
            start = end
        del self._pending[:start]
        return messages

    def _finish(self, data: bytes) -> None:
        if self.uuid is None or self._pending:
            raise EnvelopeRefused("response ends inside its uuid or a message")
        if len(data) < LENGTH_BYTES or int.from_bytes(data[:LENGTH_BYTES], "big") != len(data) - LENGTH_BYTES:
            raise EnvelopeRefused("response's final chunk is not exactly one summary")
        try:
            self.outcome = Outcome(job_pb2.EndJob.FromString(data[LENGTH_BYTES:]).outcome)
        except (DecodeError, ValueError):
            raise EnvelopeRefused("response's summary has no known outcome") from None
