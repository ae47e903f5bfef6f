"""The node's side of one request, from the KEM secret on: opens the request, seals the answer, derives the KV key."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from tie.contracts.errors import OverCapacity
from tie.contracts.limits import KV_REQUEST_KEY_BYTES, MAX_REQUEST_BYTES
from tie.envelope import wrapped_key
from tie.envelope.chunks import ChunkOpener, ChunkSealer, request_opener, response_sealer
from tie.envelope.framing import LENGTH_BYTES, UUID_BYTES, Outcome, frame, summary_frame, unframe_request
from tie.envelope.hpke import Context
from tie.envelope.kem import expand, extract

_KV_LABEL: Final = b"tie/kv/request/v1"
_KV_SALT_BYTES: Final = 32


@dataclass(slots=True)
class NodeSession:
    """One request as the helper holds it. The DEK itself is not kept, and never handed on."""

    kv_request_key: bytes = field(repr=False)
    _opener: ChunkOpener = field(repr=False)
    _sealer: ChunkSealer = field(repr=False)
    _opened: bytearray = field(default_factory=bytearray, repr=False)

    def open_chunk(self, payload: bytes, is_final: bool) -> None:
        """Raises EnvelopeRefused: altered, reordered or after the final one; OverCapacity past the size limit."""
        self._opened += self._opener.open(payload, is_final)
        if len(self._opened) > MAX_REQUEST_BYTES + LENGTH_BYTES:
            raise OverCapacity(f"request passes the limit of {MAX_REQUEST_BYTES} bytes")

    @property
    def is_request_whole(self) -> bool:
        """Whether the final chunk has opened: nothing may be dispatched before."""
        return self._opener.is_over

    def take_request(self) -> bytes:
        """The request's one message, once. Raises EnvelopeRefused when its frame is wrong."""
        assert self.is_request_whole, "the request is taken after its final chunk"
        opened, self._opened = self._opened, bytearray()
        return unframe_request(opened)

    def seal_start(self) -> bytes:
        """The first response chunk: a random UUID. Call once, before any other."""
        return self._sealer.seal(os.urandom(UUID_BYTES), False)

    def seal_message(self, message: bytes) -> bytes:
        """One response message as one chunk."""
        return self._sealer.seal(frame(message), False)

    def seal_summary(self, outcome: Outcome) -> bytes:
        """The only final chunk."""
        return self._sealer.seal(summary_frame(outcome), True)


def open_request(wrapped: bytes, kem_secret: bytes) -> NodeSession:
    """The session of a wrapped key whose enc holds `kem_secret`. Raises EnvelopeRefused when the DEK does not open."""
    key = wrapped_key.parse(wrapped)
    context = Context(key.suite, kem_secret, wrapped_key.info(key.key_number, key.suite))
    dek = key.open_dek(context)
    sealer = response_sealer(key.suite, context, key.enc)
    return NodeSession(kv_request_key(dek, context), request_opener(dek), sealer)


def kv_request_key(dek: bytes, context: Context) -> bytes:
    """The ephemeral cache key of a request. Salted by this context: a device may wrap one DEK for several nodes."""
    return expand(extract(context.export(_KV_LABEL, _KV_SALT_BYTES), dek), _KV_LABEL, KV_REQUEST_KEY_BYTES)
