"""A device and a node, without anything between them."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.contracts.errors import OverCapacity
from tie.contracts.limits import MAX_REQUEST_BYTES
from tie.envelope import wrapped_key
from tie.envelope.device import DeviceSession, seal_request
from tie.envelope.framing import Outcome, frame
from tie.envelope.hpke import Context
from tie.envelope.node import NodeSession, open_request
from tie.envelope.refusal import EnvelopeRefused
from tie.envelope.suites import X25519_SHA256_AES128GCM

SUITE = X25519_SHA256_AES128GCM
PRIVATE, PUBLIC = SUITE.kem.generate()


def connect() -> tuple[DeviceSession, NodeSession]:
    device = seal_request(PUBLIC, 9)
    return device, open_request(device.wrapped_key, SUITE.kem.decapsulate(PRIVATE, device.wrapped_key[7:39]))


def test_a_node_with_another_secret_opens_nothing() -> None:
    with pytest.raises(EnvelopeRefused, match="does not open"):
        open_request(seal_request(PUBLIC, 9).wrapped_key, bytes(32))


def test_a_request_past_the_limit_is_over_capacity() -> None:
    device, node = connect()
    framed = frame(bytes(MAX_REQUEST_BYTES + 1))
    node.open_chunk(device.seal_chunk(framed[:-1], False), False)
    with pytest.raises(OverCapacity, match=str(MAX_REQUEST_BYTES)):
        node.open_chunk(device.seal_chunk(framed[-1:], True), True)


def test_a_request_is_not_whole_before_its_final_chunk() -> None:
    device, node = connect()
    node.open_chunk(device.seal_chunk(frame(b"question"), False), False)
    assert not node.is_request_whole
    with pytest.raises(AssertionError):
        node.take_request()
    node.open_chunk(device.seal_chunk(b"", True), True)
    assert node.take_request() == b"question"


def test_an_answer_without_its_summary_has_no_outcome() -> None:
    device, node = connect()
    device.open_response_chunk(node.seal_start(), False)
    assert device.open_response_chunk(node.seal_message(b"half an ans"), False) == [b"half an ans"]
    assert device.outcome is None


@settings(max_examples=30)
@given(
    request=st.binary(max_size=500),
    chunk_bytes=st.integers(1, 200),
    answers=st.lists(st.binary(max_size=100), max_size=5),
    outcome=st.sampled_from(list(Outcome)),
)
def test_round_trip(request: bytes, chunk_bytes: int, answers: list[bytes], outcome: Outcome) -> None:
    device, node = connect()
    for part in device.seal_message(request, chunk_bytes):
        node.open_chunk(part.payload, part.is_final)
    assert node.is_request_whole
    assert node.take_request() == request
    assert device.open_response_chunk(node.seal_start(), False) == []
    opened = [message for sent in answers for message in device.open_response_chunk(node.seal_message(sent), False)]
    assert opened == answers
    device.open_response_chunk(node.seal_summary(outcome), True)
    assert device.outcome is outcome
    assert len(device.response_uuid or b"") == 16


def test_the_kv_key_is_derived_as_the_contract_says() -> None:
    device, node = connect()
    key = wrapped_key.parse(device.wrapped_key)
    secret = SUITE.kem.decapsulate(PRIVATE, key.enc)
    context = Context(SUITE, secret, wrapped_key.info(9, SUITE))
    dek = key.open_dek(context)
    salt = context.export(b"tie/kv/request/v1", 32)
    assert node.kv_request_key == HKDF(SHA256(), 32, salt, b"tie/kv/request/v1").derive(dek)
    assert len(dek) == 16


def test_two_attempts_share_nothing() -> None:
    first, second = connect(), connect()
    assert first[0].wrapped_key[7:] != second[0].wrapped_key[7:]
    assert first[1].kv_request_key != second[1].kv_request_key


def test_reprs_show_nothing() -> None:
    device, node = connect()
    assert repr(node) == "NodeSession()"
    assert repr(next(device.seal_message(b"secret"))) == "SealedPart(is_final=True)"
