"""How a helper gets at its request: the binding key, the call to key protection, and from there the session."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import grpc

from tie.api.key_protection.v1 import key_protection_pb2 as pb
from tie.api.key_protection.v1 import key_protection_pb2_grpc as rpc
from tie.cloudboard.key_protection import sealed_secret
from tie.cloudboard.pair_wire import Refused
from tie.contracts.errors import PeerGone
from tie.envelope import node, wrapped_key
from tie.envelope.device import seal_request
from tie.envelope.framing import Outcome
from tie.envelope.refusal import EnvelopeRefused

_CALL_LIMIT_S: Final = 5.0
_CONNECT_LIMIT_S: Final = 10.0
_CHANNEL_OPTIONS: Final = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000))
_STATUSES: Final = {
    grpc.StatusCode.INVALID_ARGUMENT: (
        "INVALID_ARGUMENT",
        "decryption_key.encrypted_payload: its enc cannot be opened",
    ),
    grpc.StatusCode.NOT_FOUND: ("INVALID_ARGUMENT", "decryption_key.key_id: unknown or expired key"),
    grpc.StatusCode.PERMISSION_DENIED: ("PERMISSION_DENIED", "key protection refused this enc: presented before"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: ("RESOURCE_EXHAUSTED", "this key opens no more requests"),
    grpc.StatusCode.DEADLINE_EXCEEDED: ("DEADLINE_EXCEEDED", "key protection did not answer in time"),
}
_OTHERWISE: Final = ("UNAVAILABLE", "key protection is not available")


class Opening:
    """One binding key and one connection, made while the pair warms up; opens one wrapped key."""

    def __init__(self, socket: Path) -> None:
        self._private, self.binding_key = sealed_secret.BINDING_SUITE.kem.generate()
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)
        self._stub = rpc.KeyProtectionStub(self._channel)

    def rehearse(self) -> None:
        """Connects, and goes once through what a request will need, so that none of it is done for the first time.

        Raises PeerGone when key protection does not answer.
        """
        try:
            grpc.channel_ready_future(self._channel).result(_CONNECT_LIMIT_S)
        except grpc.FutureTimeoutError:
            raise PeerGone(f"key protection did not answer within {_CONNECT_LIMIT_S} s") from None
        suite = sealed_secret.BINDING_SUITE
        private, public = suite.kem.generate()
        device = seal_request(public, 0, suite)
        wrapped = wrapped_key.parse(device.wrapped_key)
        secret = suite.kem.decapsulate(private, wrapped.enc)
        sealed_secret.open_sealed(private, 0, wrapped.enc, *sealed_secret.seal(public, 0, wrapped.enc, secret))
        session = node.open_request(device.wrapped_key, secret)
        session.open_chunk(device.seal_chunk(b"\0\0\0\0", True), True)
        device.open_response_chunk(session.seal_start(), False)
        device.open_response_chunk(session.seal_summary(Outcome.OK), True)

    def open(self, job_id: bytes, wrapped: bytes) -> node.NodeSession:
        """Raises Refused with the status for the client."""
        try:
            key = wrapped_key.parse(wrapped)
            request = pb.DecapsulateRequest(
                job_id=job_id, key_number=key.key_number, enc=key.enc, binding_key=self.binding_key
            )
            reply = self._stub.Decapsulate(request, timeout=_CALL_LIMIT_S, wait_for_ready=True)
            secret = sealed_secret.open_sealed(self._private, key.key_number, key.enc, reply.enc, reply.sealed_secret)
            return node.open_request(wrapped, secret)
        except grpc.RpcError as error:
            raise Refused(*_STATUSES.get(error.code(), _OTHERWISE)) from None
        except EnvelopeRefused as error:
            raise Refused("INVALID_ARGUMENT", f"decryption_key.encrypted_payload: {error}") from None
