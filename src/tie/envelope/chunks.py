"""Sealed chunks in both directions: one key, a counter in the nonce, and `final` as the last chunk's AAD.

So a changed, moved, missing or added chunk does not open. Request and response differ only in what stands before the
first chunk: version and nonce, or the response nonce from which key and nonce are derived.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tie.envelope.hpke import Context, counter_nonce
from tie.envelope.kem import expand, extract
from tie.envelope.refusal import EnvelopeRefused
from tie.envelope.suites import NONCE_BYTES, TAG_BYTES, Suite

_VERSION: Final = b"\x00\x01"
_RESPONSE_NONCE_BYTES: Final = 16
_RESPONSE_LABEL: Final = b"application/protobuf chunked response"
_FINAL: Final = b"final"
REQUEST_OVERHEAD_BYTES: Final = len(_VERSION) + NONCE_BYTES
CHUNK_OVERHEAD_BYTES: Final = TAG_BYTES


class ChunkSealer:
    """Seals chunks in order. `prefix` goes in clear before the first one."""

    __slots__ = ("_aead", "_count", "_is_over", "_nonce", "_prefix")

    def __init__(self, key: bytes, nonce: bytes, prefix: bytes) -> None:
        self._aead, self._nonce, self._prefix = AESGCM(key), nonce, prefix
        self._count, self._is_over = 0, False

    def seal(self, data: bytes, is_final: bool) -> bytes:
        assert not self._is_over, "nothing is sealed after the final chunk"
        sealed = self._aead.encrypt(counter_nonce(self._nonce, self._count), data, _FINAL if is_final else b"")
        if self._count == 0:
            sealed = self._prefix + sealed
        self._count, self._is_over = self._count + 1, is_final
        return sealed


class ChunkOpener:
    """Opens chunks in order. `begin` reads what stands before the first one: (key, nonce, rest of the chunk)."""

    __slots__ = ("_aead", "_begin", "_count", "_is_over", "_nonce", "_what")

    def __init__(self, what: str, begin: Callable[[bytes], tuple[bytes, bytes, bytes]]) -> None:
        self._what, self._begin = what, begin
        self._aead: AESGCM | None = None
        self._nonce = b""
        self._count, self._is_over = 0, False

    @property
    def is_over(self) -> bool:
        """Whether the final chunk has opened; without it the message is truncated."""
        return self._is_over

    def open(self, sealed: bytes, is_final: bool) -> bytes:
        """Raises EnvelopeRefused; nothing opens after that."""
        if self._is_over:
            raise EnvelopeRefused(f"{self._what} chunk {self._count} comes after the final one")
        if self._aead is None:
            key, self._nonce, sealed = self._begin(sealed)
            self._aead = AESGCM(key)
        try:
            data = self._aead.decrypt(counter_nonce(self._nonce, self._count), sealed, _FINAL if is_final else b"")
        except (InvalidTag, ValueError):
            raise EnvelopeRefused(f"{self._what} chunk {self._count} of {len(sealed)} bytes does not open") from None
        self._count, self._is_over = self._count + 1, is_final
        return data


def request_sealer(dek: bytes) -> ChunkSealer:
    nonce = os.urandom(NONCE_BYTES)
    return ChunkSealer(dek, nonce, _VERSION + nonce)


def request_opener(dek: bytes) -> ChunkOpener:
    def begin(first: bytes) -> tuple[bytes, bytes, bytes]:
        _check_room("request", first, REQUEST_OVERHEAD_BYTES)
        if (version := first[: len(_VERSION)]) != _VERSION:
            raise EnvelopeRefused(f"request chunk 0 has version {version.hex()}, expected {_VERSION.hex()}")
        return dek, first[len(_VERSION) : REQUEST_OVERHEAD_BYTES], first[REQUEST_OVERHEAD_BYTES:]

    return ChunkOpener("request", begin)


def response_sealer(suite: Suite, context: Context, enc: bytes) -> ChunkSealer:
    response_nonce = os.urandom(_RESPONSE_NONCE_BYTES)
    return ChunkSealer(*_response_keys(suite, context, enc, response_nonce), response_nonce)


def response_opener(suite: Suite, context: Context, enc: bytes) -> ChunkOpener:
    def begin(first: bytes) -> tuple[bytes, bytes, bytes]:
        _check_room("response", first, _RESPONSE_NONCE_BYTES)
        key, nonce = _response_keys(suite, context, enc, first[:_RESPONSE_NONCE_BYTES])
        return key, nonce, first[_RESPONSE_NONCE_BYTES:]

    return ChunkOpener("response", begin)


def _response_keys(suite: Suite, context: Context, enc: bytes, response_nonce: bytes) -> tuple[bytes, bytes]:
    prk = extract(enc + response_nonce, context.export(_RESPONSE_LABEL, suite.key_bytes))
    return expand(prk, b"key", suite.key_bytes), expand(prk, b"nonce", NONCE_BYTES)


def _check_room(what: str, first: bytes, prefix_bytes: int) -> None:
    if len(first) < prefix_bytes + TAG_BYTES:
        raise EnvelopeRefused(f"{what} chunk 0 has {len(first)} bytes, the least is {prefix_bytes + TAG_BYTES}")
