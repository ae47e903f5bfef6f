"""How the KEM secret travels to the helper that asked for it: HPKE-sealed to its binding key, bound to key and enc."""

from __future__ import annotations

from typing import Final

from tie.envelope import hpke
from tie.envelope.suites import X25519_SHA256_AES128GCM

BINDING_SUITE: Final = X25519_SHA256_AES128GCM
_LABEL: Final = b"tie/kps/v1"


def seal(binding_key: bytes, key_number: int, enc: bytes, kem_secret: bytes) -> tuple[bytes, bytes]:
    """Encapsulation to the binding key, sealed secret. Raises EnvelopeRefused when the binding key cannot be used."""
    return hpke.seal_once(BINDING_SUITE, binding_key, _info(key_number, enc), kem_secret, b"")


def open_sealed(binding_private: bytes, key_number: int, enc: bytes, reply_enc: bytes, sealed: bytes) -> bytes:
    """The KEM secret. Raises EnvelopeRefused when the reply is for another key, enc or helper."""
    return hpke.open_once(BINDING_SUITE, binding_private, reply_enc, _info(key_number, enc), sealed, b"")


def _info(key_number: int, enc: bytes) -> bytes:
    return _LABEL + bytes([key_number]) + enc
