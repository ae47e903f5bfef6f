"""The wrapped key: key number u8, kem u16, kdf u16, aead u16 (big-endian), enc, sealed data encryption key."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from tie.envelope.hpke import Context
from tie.envelope.refusal import EnvelopeRefused
from tie.envelope.suites import HEADER_BYTES, Suite, suite_of

_HEADER: Final = struct.Struct(">BHHH")
_INFO_PREFIX: Final = b"application/protobuf chunked request\x00"
DEK_AAD: Final = b"final"


@dataclass(frozen=True, slots=True)
class WrappedKey:
    """A parsed wrapped key of a known suite. Proves nothing yet: only opening the DEK does."""

    key_number: int
    suite: Suite
    enc: bytes = field(repr=False)
    sealed_dek: bytes = field(repr=False)

    @property
    def header(self) -> bytes:
        return header(self.key_number, self.suite)

    def encode(self) -> bytes:
        return self.header + self.enc + self.sealed_dek

    def open_dek(self, context: Context) -> bytes:
        """Raises EnvelopeRefused when header, enc or DEK were changed, or sealed to another key."""
        return context.open(self.sealed_dek, DEK_AAD)


def parse(encoded: bytes) -> WrappedKey:
    """Raises EnvelopeRefused: header cut short, unknown suite, or a length that is not the suite's."""
    if len(encoded) < HEADER_BYTES:
        raise EnvelopeRefused(f"wrapped key has {len(encoded)} bytes, its header alone takes {HEADER_BYTES}")
    key_number, *ids = _HEADER.unpack_from(encoded)
    suite = suite_of(*ids)
    if len(encoded) != suite.wrapped_key_bytes:
        raise EnvelopeRefused(f"wrapped key has {len(encoded)} bytes, {suite.name} takes {suite.wrapped_key_bytes}")
    end_of_enc = HEADER_BYTES + suite.kem.enc_bytes
    return WrappedKey(key_number, suite, encoded[HEADER_BYTES:end_of_enc], encoded[end_of_enc:])


def header(key_number: int, suite: Suite) -> bytes:
    return _HEADER.pack(key_number, *suite.ids)


def info(key_number: int, suite: Suite) -> bytes:
    """HPKE's info: what the DEK is for, under which key and suite."""
    return _INFO_PREFIX + header(key_number, suite)
