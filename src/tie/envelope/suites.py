"""The suites that a wrapped key may name. Every length that depends on a suite is read from here.

A second suite (X-Wing: ML-KEM-768 + X25519, KEM 0x647a, an enc of 1120 bytes) is one more row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tie.envelope.kem import DhkemX25519, Kem
from tie.envelope.refusal import EnvelopeRefused

NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
HEADER_BYTES: Final = 7
"""Of a wrapped key: key number u8, kem u16, kdf u16, aead u16."""


@dataclass(frozen=True, slots=True)
class Suite:
    """KEM, KDF and AEAD that belong together, with the lengths that follow from them."""

    name: str
    kem: Kem
    kdf_id: int
    aead_id: int
    key_bytes: int
    """Of the AEAD, and so of the data encryption key too."""

    @property
    def ids(self) -> tuple[int, int, int]:
        return (self.kem.kem_id, self.kdf_id, self.aead_id)

    @property
    def encoded_ids(self) -> bytes:
        return b"".join(number.to_bytes(2, "big") for number in self.ids)

    @property
    def sealed_dek_bytes(self) -> int:
        return self.key_bytes + TAG_BYTES

    @property
    def wrapped_key_bytes(self) -> int:
        return HEADER_BYTES + self.kem.enc_bytes + self.sealed_dek_bytes


X25519_SHA256_AES128GCM: Final = Suite("x25519-sha256-aes128gcm", DhkemX25519(), 0x0001, 0x0001, 16)
SUITES: Final[Mapping[tuple[int, int, int], Suite]] = {X25519_SHA256_AES128GCM.ids: X25519_SHA256_AES128GCM}


def suite_of(kem_id: int, kdf_id: int, aead_id: int) -> Suite:
    """The suite with these ids. Raises EnvelopeRefused for any other."""
    try:
        return SUITES[kem_id, kdf_id, aead_id]
    except KeyError:
        raise EnvelopeRefused(
            f"no such suite: kem {kem_id:#06x}, kdf {kdf_id:#06x}, aead {aead_id:#06x}; "
            f"known: {', '.join(suite.name for suite in SUITES.values())}"
        ) from None
