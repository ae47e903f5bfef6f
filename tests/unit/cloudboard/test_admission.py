"""What cloudboardd refuses of the cleartext, and that nothing of it is echoed."""

from __future__ import annotations

from typing import Any

import pytest

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.cloudboard.admission import admit
from tie.cloudboard.keyring import Keyring, Lifetimes, Workload
from tie.contracts.errors import CallerError, InvalidRequest, Replayed
from tie.envelope.device import seal_request
from tie.envelope.refusal import EnvelopeRefused
from tie.envelope.suites import X25519_SHA256_AES128GCM

SUITE = X25519_SHA256_AES128GCM
_, PUBLIC = SUITE.kem.generate()


def keyring() -> Keyring:
    ring = Keyring(SUITE, Lifetimes(10, 20, 1), lambda: 0.0)
    ring.serve(Workload("m", "1"))
    ring.add(4, PUBLIC)
    return ring


def parameters(ring: Keyring, wrapped: bytes, **changes: Any) -> pb.Parameters:
    fields: dict[str, Any] = {
        "workload": pb.Workload(name="tie-cloud-app", parameters={"tier": "a"}),
        "decryption_key": pb.DecryptionKey(encrypted_payload=wrapped, key_id=ring.attestation().key_id),
        "request_id": "trace",
    }
    return pb.Parameters(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"workload": pb.Workload(name="MARKER")}, "workload.name"),
        ({"workload": None}, "workload.name"),
        ({"request_id": "MARKER" * 11}, "request_id"),
        ({"request_id": "MARKER\n"}, "request_id"),
        ({"request_id": "MARKER\u00e9"}, "request_id"),
        ({"workload": pb.Workload(name="tie-cloud-app", parameters={"MARKER": "v" * 257})}, "workload.parameters"),
        ({"workload": pb.Workload(name="tie-cloud-app", parameters={"MARKER" * 11: "v"})}, "workload.parameters"),
        (
            {"workload": pb.Workload(name="tie-cloud-app", parameters={str(n): "MARKER" for n in range(17)})},
            "workload.parameters",
        ),
        ({"decryption_key": None}, "decryption_key.key_id"),
        ({"decryption_key": pb.DecryptionKey(key_id=b"MARKER")}, "decryption_key.key_id"),
    ],
)
def test_bad_cleartext_is_refused_by_field_and_not_echoed(changes: dict[str, Any], where: str) -> None:
    ring = keyring()
    with pytest.raises(InvalidRequest) as refusal:
        admit(parameters(ring, seal_request(PUBLIC, 4).wrapped_key, **changes), ring)
    assert refusal.value.where == where
    assert "MARKER" not in str(refusal.value)


@pytest.mark.parametrize("length", [0, 6, 70, 72])
def test_a_wrapped_key_of_another_length_is_refused(length: int) -> None:
    ring = keyring()
    with pytest.raises(EnvelopeRefused):
        admit(parameters(ring, (seal_request(PUBLIC, 4).wrapped_key * 2)[:length]), ring)


def test_a_key_number_that_is_not_the_key_id_s_is_refused() -> None:
    ring = keyring()
    with pytest.raises(InvalidRequest, match="key number"):
        admit(parameters(ring, seal_request(PUBLIC, 5).wrapped_key), ring)


def test_a_refused_request_does_not_use_its_wrapped_key_up() -> None:
    ring = keyring()
    wrapped = seal_request(PUBLIC, 4).wrapped_key
    with pytest.raises(CallerError):
        admit(parameters(ring, wrapped, request_id="\n"), ring)
    assert admit(parameters(ring, wrapped), ring).wrapped.encode() == wrapped


def test_a_replay_is_refused() -> None:
    ring = keyring()
    wrapped = seal_request(PUBLIC, 4).wrapped_key
    assert admit(parameters(ring, wrapped), ring).wrapped.encode() == wrapped
    with pytest.raises(Replayed):
        admit(parameters(ring, wrapped), ring)
