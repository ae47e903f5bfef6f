"""One attempt at one request, without I/O: what to send, what an answer's chunks mean, what its end means.

The blocking and the asyncio client move the messages. An attempt is never repeated: another one seals anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import grpc

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.envelope.device import seal_request
from tie.envelope.framing import Outcome
from tie.envelope.refusal import EnvelopeRefused
from tie.vre.attestation import NodeKey
from tie.vre.errors import BadAnswer, CallFailed, NodeUnreachable
from tie.vre.events import Event, NodeError, Truncated, parse

WORKLOAD: Final = "tie-cloud-app"
SETUP: Final = pb.InvokeWorkloadRequest(setup=pb.Setup())
TERMINATE: Final = pb.InvokeWorkloadRequest(terminate=pb.Terminate())
_OUTCOME_KINDS: Final = {
    Outcome.UNAUTHENTICATED: "unauthenticated",
    Outcome.INTERNAL_ERROR: "internal",
    Outcome.INVALID_REQUEST: "invalid_request",
}


class Exchange:
    """Seals `payload` to `key` and opens what comes back."""

    def __init__(self, key: NodeKey, payload: bytes, trace_id: str = "") -> None:
        try:
            self._session = seal_request(key.public_key, key.key_number, key.suite)
        except EnvelopeRefused as error:
            raise BadAnswer(f"the node's key cannot be sealed to: {error}") from error
        self._key = key
        self._payload = payload
        self._trace_id = trace_id
        self._has_error = False
        self.has_begun = False
        """Whether anything of the answer has come that can be shown."""

    @property
    def is_over(self) -> bool:
        """Whether the answer's sealed end has come."""
        return self._session.outcome is not None

    def opening(self) -> Iterator[pb.InvokeWorkloadRequest]:
        """All that is sent unasked, in order; the node's acknowledgement is not waited for."""
        yield SETUP
        yield pb.InvokeWorkloadRequest(
            parameters=pb.Parameters(
                workload=pb.Workload(name=WORKLOAD),
                decryption_key=pb.DecryptionKey(encrypted_payload=self._session.wrapped_key, key_id=self._key.key_id),
                request_id=self._trace_id,
            )
        )
        for part in self._session.seal_message(self._payload):
            chunk = pb.SealedChunk(encrypted_payload=part.payload, is_final=part.is_final)
            yield pb.InvokeWorkloadRequest(request_chunk=chunk)

    def receive(self, message: pb.InvokeWorkloadResponse) -> list[Event]:
        """The events that one message of the node brings. Raises BadAnswer when it was altered or is misshapen."""
        if message.WhichOneof("message") != "response_chunk":
            return []
        chunk = message.response_chunk
        try:
            opened = self._session.open_response_chunk(chunk.encrypted_payload, chunk.is_final)
        except EnvelopeRefused as error:
            raise BadAnswer(f"the answer does not open: {error}") from error
        events = [parse(data) for data in opened]
        self.has_begun = self.has_begun or bool(events)
        self._has_error = self._has_error or any(isinstance(event, NodeError) for event in events)
        return events + self._verdict()

    def _verdict(self) -> list[Event]:
        outcome = self._session.outcome
        if outcome in (None, Outcome.OK) or self._has_error:
            return []
        kind = _OUTCOME_KINDS[outcome]
        return [NodeError(kind, "the node ended the request without saying why", "")]

    def end(self, why_cut: str = "") -> list[Event]:
        """The stream has ended: nothing where the answer is whole, else its mark."""
        if self.is_over:
            return []
        return [Truncated(why_cut or "the node ended the stream before the answer's sealed end")]

    def fail(self, code: grpc.StatusCode, details: str) -> list[Event]:
        """The call has failed: a cut answer gets its mark; where none had begun, raises what stands for the status."""
        if self.has_begun or self.is_over:
            return self.end(f"{code.name.lower()}: {details}" if details else code.name.lower())
        raise failure(code, details)


def failure(code: grpc.StatusCode, details: str) -> NodeUnreachable | CallFailed:
    """A call that ended without an answer."""
    if code is grpc.StatusCode.UNAVAILABLE:
        return NodeUnreachable(f"the node does not answer or takes no requests now: {details}")
    return CallFailed(code.name.lower(), f"the node refused the request: {code.name.lower()}: {details}")


def is_stale_key(error: CallFailed) -> bool:
    """Whether the node may no longer know the key that was sealed to, so that a fresh attestation is worth a try."""
    return error.kind == "invalid_argument"
