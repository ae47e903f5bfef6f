"""DHKEM(X25519, HKDF-SHA256) of RFC 9180 section 4.1, and the labelled KDF that all of HPKE is built on."""

from __future__ import annotations

import hashlib
import hmac
from typing import Final, Protocol

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from tie.envelope.refusal import EnvelopeRefused

HASH_BYTES: Final = hashlib.sha256().digest_size
_VERSION: Final = b"HPKE-v1"


class Kem(Protocol):
    """A key encapsulation mechanism as a suite names it. Keys and secrets are raw bytes of fixed lengths."""

    kem_id: int
    enc_bytes: int
    public_key_bytes: int
    private_key_bytes: int
    secret_bytes: int

    def generate(self) -> tuple[bytes, bytes]:
        """A fresh key pair: private, public."""
        ...

    def encapsulate(self, public_key: bytes) -> tuple[bytes, bytes]:
        """A fresh secret for `public_key`, and its `enc`. Raises EnvelopeRefused for a key that cannot be used."""
        ...

    def decapsulate(self, private_key: bytes, enc: bytes) -> bytes:
        """The secret of `enc`. Raises EnvelopeRefused when `enc` is malformed or a low-order point."""
        ...


class DhkemX25519:
    """The KEM of the deployed suite."""

    kem_id = 0x0020
    enc_bytes = 32
    public_key_bytes = 32
    private_key_bytes = 32
    secret_bytes = 32

    def generate(self) -> tuple[bytes, bytes]:
        private = X25519PrivateKey.generate()
        return private.private_bytes_raw(), private.public_key().public_bytes_raw()

    def encapsulate(self, public_key: bytes) -> tuple[bytes, bytes]:
        return self.encapsulate_with(X25519PrivateKey.generate(), public_key)

    def encapsulate_with(self, ephemeral: X25519PrivateKey, public_key: bytes) -> tuple[bytes, bytes]:
        """As `encapsulate`, with the caller's ephemeral key: for the RFC's vectors only, a reused key voids secrecy."""
        enc = ephemeral.public_key().public_bytes_raw()
        return self._secret(_exchange(ephemeral, public_key, "public key"), enc + public_key), enc

    def decapsulate(self, private_key: bytes, enc: bytes) -> bytes:
        private = X25519PrivateKey.from_private_bytes(private_key)
        shared = _exchange(private, enc, "enc")
        return self._secret(shared, enc + private.public_key().public_bytes_raw())

    def _secret(self, shared: bytes, kem_context: bytes) -> bytes:
        suite_id = b"KEM" + self.kem_id.to_bytes(2, "big")
        prk = labeled_extract(suite_id, b"", b"eae_prk", shared)
        return labeled_expand(suite_id, prk, b"shared_secret", kem_context, self.secret_bytes)


def _exchange(private: X25519PrivateKey, peer: bytes, what: str) -> bytes:
    if len(peer) != DhkemX25519.public_key_bytes:
        raise EnvelopeRefused(f"{what} has {len(peer)} bytes, X25519 takes {DhkemX25519.public_key_bytes}")
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(peer))
    except ValueError:
        raise EnvelopeRefused(f"{what} is a low-order point of X25519") from None


def labeled_extract(suite_id: bytes, salt: bytes, label: bytes, key_material: bytes) -> bytes:
    return extract(salt, _VERSION + suite_id + label + key_material)


def labeled_expand(suite_id: bytes, prk: bytes, label: bytes, info: bytes, length: int) -> bytes:
    return expand(prk, length.to_bytes(2, "big") + _VERSION + suite_id + label + info, length)


def extract(salt: bytes, key_material: bytes) -> bytes:
    """HKDF-Extract with SHA-256 (RFC 5869)."""
    return hmac.digest(salt, key_material, "sha256")


def expand(prk: bytes, info: bytes, length: int) -> bytes:
    """HKDF-Expand with SHA-256 (RFC 5869)."""
    assert 0 < length <= 255 * HASH_BYTES, "HKDF-Expand makes at most 255 blocks"
    output, block = b"", b""
    for counter in range(1, -(-length // HASH_BYTES) + 1):
        block = hmac.digest(prk, block + info + bytes([counter]), "sha256")
        output += block
    return output[:length]
