"""Sealed chunks: whatever is changed, moved, dropped or added does not open."""

from __future__ import annotations

import os

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from tie.envelope import chunks
from tie.envelope.chunks import ChunkOpener, ChunkSealer
from tie.envelope.hpke import Context
from tie.envelope.refusal import EnvelopeRefused
from tie.envelope.suites import X25519_SHA256_AES128GCM

SUITE = X25519_SHA256_AES128GCM
DEK = bytes(range(16))
ENC = bytes(32)


def context() -> Context:
    return Context(SUITE, bytes(32), b"info")


def pair(direction: str) -> tuple[ChunkSealer, ChunkOpener]:
    if direction == "request":
        return chunks.request_sealer(DEK), chunks.request_opener(DEK)
    return chunks.response_sealer(SUITE, context(), ENC), chunks.response_opener(SUITE, context(), ENC)


def sealed(sealer: ChunkSealer, parts: list[bytes]) -> list[tuple[bytes, bool]]:
    return [(sealer.seal(part, is_final), is_final) for part, is_final in finals(parts)]


def finals(parts: list[bytes]) -> list[tuple[bytes, bool]]:
    return [(part, index == len(parts) - 1) for index, part in enumerate(parts)]


both = pytest.mark.parametrize("direction", ["request", "response"])


@both
@given(data=st.data())
def test_a_changed_chunk_does_not_open(direction: str, data: st.DataObject) -> None:
    sealer, opener = pair(direction)
    sent = sealed(sealer, data.draw(st.lists(st.binary(max_size=40), min_size=1, max_size=4)))
    victim = data.draw(st.integers(0, len(sent) - 1))
    changed = bytearray(sent[victim][0])
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= data.draw(st.integers(1, 255))
    for payload, is_final in sent[:victim]:
        opener.open(payload, is_final)
    with pytest.raises(EnvelopeRefused):
        opener.open(bytes(changed), sent[victim][1])


@both
@given(order=st.permutations(range(4)))
def test_reordered_chunks_do_not_open(direction: str, order: list[int]) -> None:
    sealer, opener = pair(direction)
    sent = sealed(sealer, [b"a", b"b", b"c", b"d"])
    opened = []
    try:
        for index in order:
            opened.append(opener.open(*sent[index]))
    except EnvelopeRefused:
        assert opened == [b"a", b"b", b"c", b"d"][: len(opened)]
        assert not opener.is_over
    else:
        assert order == [0, 1, 2, 3]


@both
def test_a_dropped_chunk_is_noticed_by_the_next(direction: str) -> None:
    sealer, opener = pair(direction)
    first, _, third = sealed(sealer, [b"a", b"b", b"c"])
    opener.open(*first)
    with pytest.raises(EnvelopeRefused, match=f"{direction} chunk 1"):
        opener.open(*third)


@both
def test_truncation_leaves_the_message_unfinished(direction: str) -> None:
    sealer, opener = pair(direction)
    first, second, _ = sealed(sealer, [b"a", b"b", b"c"])
    opener.open(*first)
    opener.open(*second)
    assert not opener.is_over


@both
def test_a_middle_chunk_cannot_be_passed_off_as_the_final_one_nor_the_reverse(direction: str) -> None:
    sealer, opener = pair(direction)
    payload = sealer.seal(b"a", False)
    with pytest.raises(EnvelopeRefused):
        opener.open(payload, True)
    sealer, opener = pair(direction)
    payload = sealer.seal(b"a", True)
    with pytest.raises(EnvelopeRefused):
        opener.open(payload, False)


@both
def test_nothing_opens_after_the_final_chunk(direction: str) -> None:
    sealer, opener = pair(direction)
    payload = sealer.seal(b"a", True)
    opener.open(payload, True)
    for is_final in (False, True):
        with pytest.raises(EnvelopeRefused, match="after the final one"):
            opener.open(payload, is_final)


@both
def test_nothing_is_sealed_after_the_final_chunk(direction: str) -> None:
    sealer, _ = pair(direction)
    sealer.seal(b"a", True)
    with pytest.raises(AssertionError):
        sealer.seal(b"b", False)


@both
@pytest.mark.parametrize("length", [0, 1, 15])
def test_a_first_chunk_too_short_for_its_prefix_is_refused(direction: str, length: int) -> None:
    with pytest.raises(EnvelopeRefused, match=f"{length} bytes"):
        pair(direction)[1].open(bytes(length), False)


def test_another_version_is_refused() -> None:
    sealer, opener = pair("request")
    with pytest.raises(EnvelopeRefused, match="version 0002"):
        opener.open(b"\x00\x02" + sealer.seal(b"a", True)[2:], True)


def test_another_dek_does_not_open() -> None:
    with pytest.raises(EnvelopeRefused):
        chunks.request_opener(bytes(16)).open(chunks.request_sealer(DEK).seal(b"a", True), True)


def test_a_response_does_not_open_under_another_enc_or_context() -> None:
    payload = chunks.response_sealer(SUITE, context(), ENC).seal(b"a", True)
    with pytest.raises(EnvelopeRefused):
        chunks.response_opener(SUITE, context(), b"\x01" * 32).open(payload, True)
    with pytest.raises(EnvelopeRefused):
        chunks.response_opener(SUITE, Context(SUITE, bytes(32), b"other"), ENC).open(payload, True)


@both
@given(parts=st.lists(st.binary(max_size=60), min_size=1, max_size=8))
def test_round_trip(direction: str, parts: list[bytes]) -> None:
    sealer, opener = pair(direction)
    assert [opener.open(*chunk) for chunk in sealed(sealer, parts)] == parts
    assert opener.is_over


def test_request_chunks_are_laid_out_as_the_contract_says() -> None:
    first, second = sealed(chunks.request_sealer(DEK), [b"one", b"two"])
    assert first[0][:2] == b"\x00\x01"
    nonce = first[0][2:14]
    assert AESGCM(DEK).decrypt(nonce, first[0][14:], b"") == b"one"
    assert AESGCM(DEK).decrypt(nonce[:11] + bytes([nonce[11] ^ 1]), second[0], b"final") == b"two"


def test_each_request_has_a_nonce_of_its_own() -> None:
    assert len({chunks.request_sealer(os.urandom(16)).seal(b"", True)[2:14] for _ in range(50)}) == 50
