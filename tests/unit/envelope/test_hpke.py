"""HPKE against RFC 9180's vectors (appendix A.1.1) and against an implementation that is not ours."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives import hpke as independent
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.envelope.hpke import Context, counter_nonce, open_once, seal_once
from tie.envelope.kem import DhkemX25519
from tie.envelope.refusal import EnvelopeRefused
from tie.envelope.suites import X25519_SHA256_AES128GCM, suite_of

SUITE = X25519_SHA256_AES128GCM
KEM = DhkemX25519()
THEIRS = independent.Suite(independent.KEM.X25519, independent.KDF.HKDF_SHA256, independent.AEAD.AES_128_GCM)

INFO = bytes.fromhex("4f6465206f6e2061204772656369616e2055726e")
PRIVATE_E = bytes.fromhex("52c4a758a802cd8b936eceea314432798d5baf2d7e9235dc084ab1b9cfa2f736")
PRIVATE_R = bytes.fromhex("4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8")
PUBLIC_R = bytes.fromhex("3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d")
ENC = bytes.fromhex("37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431")
SHARED_SECRET = bytes.fromhex("fe0e18c9f024ce43799ae393c7e8fe8fce9d218875e8227b0187c04e7d2ea1fc")
PLAINTEXT = bytes.fromhex("4265617574792069732074727574682c20747275746820626561757479")
SEALED = (
    "f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a",
    "af2d7e9ac9ae7e270f46ba1f975be53c09f8d875bdc8535458c2494e8a6eab251c03d0c22a56b8ca42c2063b84",
)
EXPORTS = (
    (b"", "3853fe2b4035195a573ffc53856e77058e15d9ea064de3e59f4961d0095250ee"),
    (b"\x00", "2e8f0b54673c7029649d4eb9d5e33bf1872cf76d623ff164ac185da9e88c21a5"),
    (b"TestContext", "e9e43065102c3836401bed8c3c3c75ae46be1639869391d62c61f1ec7af54931"),
)
LOW_ORDER_POINTS = (
    "0000000000000000000000000000000000000000000000000000000000000000",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
    "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
)


@pytest.mark.parametrize("point", LOW_ORDER_POINTS)
def test_low_order_points_are_refused_on_both_sides(point: str) -> None:
    with pytest.raises(EnvelopeRefused, match="low-order"):
        KEM.decapsulate(PRIVATE_R, bytes.fromhex(point))
    with pytest.raises(EnvelopeRefused, match="low-order"):
        KEM.encapsulate(bytes.fromhex(point))


@pytest.mark.parametrize("length", [0, 31, 33])
def test_points_of_another_length_are_refused(length: int) -> None:
    with pytest.raises(EnvelopeRefused, match=f"{length} bytes"):
        KEM.decapsulate(PRIVATE_R, b"\x09" * length)


def test_an_opener_refuses_another_info_aad_enc_or_order() -> None:
    private, public = KEM.generate()
    enc, sealed = seal_once(SUITE, public, b"info", b"secret", b"aad")
    assert open_once(SUITE, private, enc, b"info", sealed, b"aad") == b"secret"
    other = seal_once(SUITE, public, b"info", b"secret", b"aad")[0]
    for changed in ((enc, b"Info", sealed, b"aad"), (enc, b"info", sealed, b""), (other, b"info", sealed, b"aad")):
        with pytest.raises(EnvelopeRefused, match="does not open"):
            open_once(SUITE, private, *changed)
    secret = KEM.decapsulate(private, enc)
    twice = Context(SUITE, secret, b"info")
    twice.open(sealed, b"aad")
    with pytest.raises(EnvelopeRefused, match="does not open"):
        twice.open(sealed, b"aad")


def test_a_short_ciphertext_is_refused() -> None:
    with pytest.raises(EnvelopeRefused, match="3 bytes"):
        Context(SUITE, SHARED_SECRET, INFO).open(b"abc", b"")


def test_unknown_suites_are_refused_by_their_ids() -> None:
    with pytest.raises(EnvelopeRefused, match="kem 0x647a"):
        suite_of(0x647A, 1, 1)
    with pytest.raises(EnvelopeRefused, match="aead 0x0002"):
        suite_of(0x20, 1, 2)


def test_rfc_9180_kem() -> None:
    secret, enc = KEM.encapsulate_with(X25519PrivateKey.from_private_bytes(PRIVATE_E), PUBLIC_R)
    assert (enc, secret) == (ENC, SHARED_SECRET)
    assert KEM.decapsulate(PRIVATE_R, ENC) == SHARED_SECRET


def test_rfc_9180_sealing_in_sequence() -> None:
    sealing, opening = Context(SUITE, SHARED_SECRET, INFO), Context(SUITE, SHARED_SECRET, INFO)
    for number, expected in enumerate(SEALED):
        aad = f"Count-{number}".encode()
        assert sealing.seal(PLAINTEXT, aad).hex() == expected
        assert opening.open(bytes.fromhex(expected), aad) == PLAINTEXT


@pytest.mark.parametrize(("context", "expected"), EXPORTS)
def test_rfc_9180_exporter(context: bytes, expected: str) -> None:
    assert Context(SUITE, SHARED_SECRET, INFO).export(context, 32).hex() == expected


@settings(max_examples=40)
@given(st.binary(max_size=300), st.binary(max_size=80))
def test_an_independent_implementation_agrees_in_both_directions(plaintext: bytes, info: bytes) -> None:
    private, public = KEM.generate()
    theirs = THEIRS.encrypt(plaintext, X25519PublicKey.from_public_bytes(public), info)
    assert open_once(SUITE, private, theirs[:32], info, theirs[32:], b"") == plaintext
    enc, ours = seal_once(SUITE, public, info, plaintext, b"")
    assert THEIRS.decrypt(enc + ours, X25519PrivateKey.from_private_bytes(private), info) == plaintext


@given(st.integers(0, (1 << 64) - 1))
def test_counter_changes_only_the_last_eight_bytes_of_a_nonce(counter: int) -> None:
    base = bytes(range(12))
    nonce = counter_nonce(base, counter)
    assert nonce[:4] == base[:4]
    assert counter_nonce(nonce, counter) == base
