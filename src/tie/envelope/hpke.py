"""HPKE base mode of RFC 9180: the key schedule over a KEM secret, sealing, opening and the exporter.

Ours because the `cryptography` package's HPKE has no exporter; its X25519, AES-GCM and HMAC do the work. The KEM
stands apart (`kem.py`), so that the process that decapsulates need not be the one that opens.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tie.envelope.kem import HASH_BYTES, labeled_expand, labeled_extract
from tie.envelope.refusal import EnvelopeRefused
from tie.envelope.suites import NONCE_BYTES, Suite

_MODE_BASE: Final = b"\x00"


class Context:
    """An HPKE context after the key schedule. Sealing and opening count their own sequence; use it for one of them."""

    __slots__ = ("_aead", "_base_nonce", "_exporter_secret", "_sequence", "_suite_id")

    def __init__(self, suite: Suite, kem_secret: bytes, info: bytes) -> None:
        self._suite_id = suite_id = b"HPKE" + suite.encoded_ids
        psk_id_hash = labeled_extract(suite_id, b"", b"psk_id_hash", b"")
        info_hash = labeled_extract(suite_id, b"", b"info_hash", info)
        schedule = _MODE_BASE + psk_id_hash + info_hash
        secret = labeled_extract(suite_id, kem_secret, b"secret", b"")
        self._aead = AESGCM(labeled_expand(suite_id, secret, b"key", schedule, suite.key_bytes))
        self._base_nonce = labeled_expand(suite_id, secret, b"base_nonce", schedule, NONCE_BYTES)
        self._exporter_secret = labeled_expand(suite_id, secret, b"exp", schedule, HASH_BYTES)
        self._sequence = 0

    def seal(self, plaintext: bytes, aad: bytes) -> bytes:
        return self._aead.encrypt(self._next_nonce(), plaintext, aad)

    def open(self, ciphertext: bytes, aad: bytes) -> bytes:
        """Raises EnvelopeRefused when the ciphertext, its aad or its place in the sequence was changed."""
        try:
            return self._aead.decrypt(self._next_nonce(), ciphertext, aad)
        except (InvalidTag, ValueError):
            raise EnvelopeRefused(f"hpke: sealed message of {len(ciphertext)} bytes does not open") from None

    def export(self, context: bytes, length: int) -> bytes:
        """A secret bound to this context and to `context`."""
        return labeled_expand(self._suite_id, self._exporter_secret, b"sec", context, length)

    def _next_nonce(self) -> bytes:
        nonce = counter_nonce(self._base_nonce, self._sequence)
        self._sequence += 1
        return nonce


def counter_nonce(base: bytes, counter: int) -> bytes:
    """`base` with its last eight bytes XORed with `counter`: how HPKE and our chunks number what they seal."""
    return base[:-8] + (int.from_bytes(base[-8:], "big") ^ counter).to_bytes(8, "big")


def seal_once(suite: Suite, public_key: bytes, info: bytes, plaintext: bytes, aad: bytes) -> tuple[bytes, bytes]:
    """A single message to `public_key`: enc, ciphertext."""
    secret, enc = suite.kem.encapsulate(public_key)
    return enc, Context(suite, secret, info).seal(plaintext, aad)


def open_once(suite: Suite, private_key: bytes, enc: bytes, info: bytes, ciphertext: bytes, aad: bytes) -> bytes:
    """The reverse of `seal_once`. Raises EnvelopeRefused."""
    return Context(suite, suite.kem.decapsulate(private_key, enc), info).open(ciphertext, aad)
