"""Published keys, their lifetimes and their replay sets, under a clock of the test's own."""

from __future__ import annotations

import hashlib

import pytest

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.cloudboard.keyring import Keyring, Lifetimes, Workload
from tie.contracts.errors import InvalidRequest, NotReady, OverCapacity, Replayed
from tie.envelope.suites import X25519_SHA256_AES128GCM

HOUR = 3600.0
WORKLOAD = Workload("smollm2", "7", bytes(32))


class Clock:
    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


def make(clock: Clock, replay_capacity: int = 100) -> Keyring:
    lifetimes = Lifetimes(rotation_s=12 * HOUR, lifetime_s=24 * HOUR, grace_s=300)
    ring = Keyring(X25519_SHA256_AES128GCM, lifetimes, clock, replay_capacity)
    ring.serve(WORKLOAD)
    return ring


def test_nothing_is_attested_before_the_workload_is_known() -> None:
    ring = Keyring(X25519_SHA256_AES128GCM, Lifetimes(1, 2, 0), Clock())
    ring.add(0, bytes(32))
    assert not ring.is_rotation_due()
    with pytest.raises(NotReady, match="no attested key"):
        ring.attestation()
    ring.serve(WORKLOAD)
    assert ring.attestation().key_id


def test_unknown_key_id_is_refused() -> None:
    ring = make(Clock())
    ring.add(0, bytes(32))
    for key_id in (b"", bytes(32), ring.attestation().key_id[:-1]):
        with pytest.raises(InvalidRequest, match="unknown or expired"):
            ring.find(key_id)


def test_a_key_is_accepted_through_lifetime_and_grace_and_no_longer() -> None:
    clock = Clock()
    ring = make(clock)
    ring.add(3, bytes(32))
    key_id = ring.attestation().key_id
    clock.now += 24 * HOUR + 299
    assert ring.find(key_id).key_number == 3
    assert ring.expire() == ()
    clock.now += 1
    with pytest.raises(InvalidRequest):
        ring.find(key_id)
    assert ring.expire() == (3,)
    with pytest.raises(NotReady):
        ring.attestation()


def test_rotation_is_due_after_twelve_hours_and_the_old_key_stays_accepted() -> None:
    clock = Clock()
    ring = make(clock)
    assert ring.is_rotation_due()
    ring.add(0, bytes(32))
    old = ring.attestation()
    assert not ring.is_rotation_due()
    assert ring.next_change_s() == pytest.approx(12 * HOUR)
    clock.now += 12 * HOUR
    assert ring.is_rotation_due()
    ring.add(1, b"\x01" * 32)
    assert not ring.is_rotation_due()
    assert list(ring.attestation().unpublished_key_ids) == [old.key_id]
    assert ring.find(old.key_id).key_number == 0


def test_the_key_id_is_the_digest_of_a_development_bundle_that_says_so() -> None:
    clock = Clock()
    ring = make(clock)
    ring.add(5, bytes(range(32)))
    attestation = ring.attestation()
    assert attestation.key_id == hashlib.sha256(attestation.attestation_bundle).digest()
    bundle = pb.AttestationBundle.FromString(attestation.attestation_bundle)
    assert bundle.kind == pb.ATTESTATION_KIND_DEVELOPMENT
    assert (bundle.key_number, bundle.public_key) == (5, bytes(range(32)))
    assert (bundle.kem, bundle.kdf, bundle.aead) == (0x20, 1, 1)
    assert bundle.not_after_unix_s - bundle.not_before_unix_s == 24 * HOUR
    assert attestation.next_refresh_unix_s == int(clock.now + 12 * HOUR)
    assert (bundle.model, bundle.release, bundle.bundle_identity) == ("smollm2", "7", bytes(32))


def test_a_changed_workload_retires_the_keys_that_vouched_for_the_old_one() -> None:
    ring = make(Clock())
    ring.add(0, bytes(32))
    old = ring.attestation().key_id
    assert ring.serve(WORKLOAD) == ()
    assert ring.serve(Workload("smollm2", "8", bytes(32))) == (0,)
    with pytest.raises(InvalidRequest):
        ring.find(old)
    assert ring.is_rotation_due()


def test_a_wrapped_key_is_noted_once_per_key() -> None:
    ring = make(Clock())
    ring.add(0, bytes(32))
    first = ring.find(ring.attestation().key_id)
    ring.note(first, b"wrapped")
    with pytest.raises(Replayed):
        ring.note(first, b"wrapped")
    ring.note(first, b"another")


def test_a_full_replay_set_refuses_and_asks_for_another_key() -> None:
    ring = make(Clock(), replay_capacity=2)
    ring.add(0, bytes(32))
    key = ring.find(ring.attestation().key_id)
    ring.note(key, b"1")
    assert not ring.is_rotation_due()
    ring.note(key, b"2")
    assert ring.is_rotation_due()
    with pytest.raises(OverCapacity, match="limit"):
        ring.note(key, b"3")
    with pytest.raises(Replayed):
        ring.note(key, b"1")


def test_keys_end_with_key_protection() -> None:
    ring = make(Clock())
    ring.add(0, bytes(32))
    key_id = ring.attestation().key_id
    ring.clear()
    with pytest.raises(InvalidRequest):
        ring.find(key_id)
    assert ring.current is None
    ring.add(0, b"\x01" * 32)
    assert ring.attestation().key_id != key_id
