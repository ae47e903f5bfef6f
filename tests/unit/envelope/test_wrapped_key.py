"""The 71 bytes that a device presents: every part of them is checked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tie.envelope import wrapped_key
from tie.envelope.device import seal_request
from tie.envelope.node import open_request
from tie.envelope.refusal import EnvelopeRefused
from tie.envelope.suites import X25519_SHA256_AES128GCM

KEM = X25519_SHA256_AES128GCM.kem
PRIVATE, PUBLIC = KEM.generate()


def secret_of(wrapped: bytes) -> bytes:
    return KEM.decapsulate(PRIVATE, wrapped[7:39])


@pytest.mark.parametrize("length", [0, 6, 7, 70, 72])
def test_another_length_is_refused(length: int) -> None:
    encoded = (seal_request(PUBLIC, 1).wrapped_key + b"\x00")[:length]
    with pytest.raises(EnvelopeRefused, match=f"wrapped key has {length} bytes"):
        wrapped_key.parse(encoded)


@pytest.mark.parametrize(("offset", "match"), [(1, "kem 0x0120"), (3, "kdf 0x0101"), (5, "aead 0x0101")])
def test_another_suite_is_refused(offset: int, match: str) -> None:
    encoded = bytearray(seal_request(PUBLIC, 1).wrapped_key)
    encoded[offset] ^= 1
    with pytest.raises(EnvelopeRefused, match=match):
        wrapped_key.parse(bytes(encoded))


@given(st.integers(0, 70), st.integers(1, 255))
def test_no_byte_can_be_changed(offset: int, change: int) -> None:
    encoded = bytearray(seal_request(PUBLIC, 1).wrapped_key)
    secret = secret_of(bytes(encoded))
    encoded[offset] ^= change
    with pytest.raises(EnvelopeRefused):
        # the enc enters through the KEM secret, as the node would compute it
        open_request(bytes(encoded), secret if not 7 <= offset < 39 else secret_of(bytes(encoded)))


def test_the_layout_is_the_contract_s() -> None:
    encoded = seal_request(PUBLIC, 0xAB).wrapped_key
    assert len(encoded) == 71
    assert encoded[:7].hex() == "ab002000010001"
    parsed = wrapped_key.parse(encoded)
    assert (parsed.key_number, parsed.enc, parsed.sealed_dek) == (0xAB, encoded[7:39], encoded[39:])
    assert parsed.encode() == encoded


def test_info_ends_with_the_header() -> None:
    info = wrapped_key.info(0xAB, X25519_SHA256_AES128GCM)
    assert info == b"application/protobuf chunked request\x00" + bytes.fromhex("ab002000010001")


def test_reprs_show_no_key_material() -> None:
    parsed = wrapped_key.parse(seal_request(PUBLIC, 1).wrapped_key)
    assert "enc" not in repr(parsed).replace("wrapped", "")
    assert repr(seal_request(PUBLIC, 1)) == "DeviceSession()"
