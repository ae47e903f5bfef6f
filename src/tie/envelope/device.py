"""The device's side of one request: a fresh data encryption key, the sealed request, the opened answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from tie.envelope import wrapped_key
from tie.envelope.chunks import ChunkOpener, ChunkSealer, request_sealer, response_opener
from tie.envelope.framing import Outcome, ResponseParser, frame
from tie.envelope.hpke import Context
from tie.envelope.suites import X25519_SHA256_AES128GCM, Suite

CHUNK_BYTES: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class SealedPart:
    """One chunk to send, in order."""

    payload: bytes = field(repr=False)
    is_final: bool


@dataclass(slots=True)
class DeviceSession:
    """One attempt at one request. Never reused: another attempt seals anew, with another DEK and enc."""

    wrapped_key: bytes = field(repr=False)
    """Goes into `Parameters.decryption_key.encrypted_payload`."""
    _request: ChunkSealer = field(repr=False)
    _response: ChunkOpener = field(repr=False)
    _parser: ResponseParser = field(default_factory=ResponseParser, repr=False)

    def seal_chunk(self, data: bytes, is_final: bool) -> bytes:
        """The next chunk of the framed request. Nothing may follow the final one."""
        return self._request.seal(data, is_final)

    def seal_message(self, message: bytes, chunk_bytes: int = CHUNK_BYTES) -> Iterator[SealedPart]:
        """The whole request, framed and cut: what a client sends when it has nothing to stream."""
        framed = frame(message)
        for start in range(0, len(framed), chunk_bytes):
            is_final = start + chunk_bytes >= len(framed)
            yield SealedPart(self.seal_chunk(framed[start : start + chunk_bytes], is_final), is_final)

    def open_response_chunk(self, payload: bytes, is_final: bool) -> list[bytes]:
        """The serialized messages that this chunk completes; the final chunk sets `outcome` instead.

        Raises EnvelopeRefused when a chunk was altered, moved, dropped or added, or the answer is misshapen.
        """
        return self._parser.feed(self._response.open(payload, is_final), is_final)

    @property
    def response_uuid(self) -> bytes | None:
        return self._parser.uuid

    @property
    def outcome(self) -> Outcome | None:
        """Set by the final chunk. A stream that ends while this is None was truncated."""
        return self._parser.outcome


def seal_request(public_key: bytes, key_number: int, suite: Suite = X25519_SHA256_AES128GCM) -> DeviceSession:
    """Starts a request to the node that holds the key. Raises EnvelopeRefused when the key cannot be used."""
    secret, enc = suite.kem.encapsulate(public_key)
    context = Context(suite, secret, wrapped_key.info(key_number, suite))
    dek = os.urandom(suite.key_bytes)
    sealed_dek = context.seal(dek, wrapped_key.DEK_AAD)
    wrapped = wrapped_key.WrappedKey(key_number, suite, enc, sealed_dek).encode()
    return DeviceSession(wrapped, request_sealer(dek), response_opener(suite, context, enc))
