"""Key protection's memory: one enc, once, for the job that was announced, and for nobody else."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tie.cloudboard.key_protection.vault import KEY_NUMBERS, Job, UnknownKey, Vault
from tie.contracts.errors import CallerError, NotAdmitted, OverCapacity, Replayed
from tie.envelope.suites import X25519_SHA256_AES128GCM

JOB_ID = bytes(16)


def make(**limits: int) -> tuple[Vault, Job]:
    vault = Vault(X25519_SHA256_AES128GCM, **limits)
    number, _ = vault.make_key()
    return vault, Job(b"b" * 32, number, b"e" * 32)


def test_a_job_that_nobody_announced_opens_nothing() -> None:
    vault, job = make()
    with pytest.raises(NotAdmitted, match="no such job"):
        vault.admit(JOB_ID, job)


@pytest.mark.parametrize("change", [{"binding_key": b"x" * 32}, {"enc": b"x" * 32}, {"key_number": 7}])
def test_an_announced_job_presented_differently_opens_nothing_and_is_used_up(change: dict[str, Any]) -> None:
    vault, job = make()
    vault.announce(JOB_ID, job)
    with pytest.raises(NotAdmitted):
        vault.admit(JOB_ID, dataclasses.replace(job, **change))
    with pytest.raises(NotAdmitted):
        vault.admit(JOB_ID, job)


def test_an_enc_opens_once() -> None:
    vault, job = make()
    for job_id in (JOB_ID, b"2" * 16):
        vault.announce(job_id, job)
    assert len(vault.admit(JOB_ID, job)) == 32
    with pytest.raises(NotAdmitted):
        vault.admit(JOB_ID, job)
    with pytest.raises(Replayed):
        vault.admit(b"2" * 16, job)


def test_a_full_replay_set_opens_nothing_more_until_another_key_is_used() -> None:
    vault, job = make(replay_capacity=1)
    vault.announce(JOB_ID, job)
    vault.admit(JOB_ID, job)
    assert vault.is_full(job.key_number)
    fresh = dataclasses.replace(job, enc=b"f" * 32)
    vault.announce(JOB_ID, fresh)
    with pytest.raises(OverCapacity, match="limit"):
        vault.admit(JOB_ID, fresh)
    number, _ = vault.make_key()
    rotated = dataclasses.replace(fresh, key_number=number)
    vault.announce(JOB_ID, rotated)
    assert vault.admit(JOB_ID, rotated)


def test_unknown_and_retired_keys_open_nothing() -> None:
    vault, job = make()
    vault.announce(JOB_ID, job)
    vault.retire(job.key_number)
    with pytest.raises(UnknownKey):
        vault.admit(JOB_ID, job)


def test_an_ended_job_opens_nothing() -> None:
    vault, job = make()
    vault.announce(JOB_ID, job)
    vault.end_job(JOB_ID)
    with pytest.raises(NotAdmitted):
        vault.admit(JOB_ID, job)


@pytest.mark.parametrize("job_id", [b"", bytes(15), bytes(17)])
def test_a_malformed_job_id_is_refused(job_id: bytes) -> None:
    vault, job = make()
    with pytest.raises(CallerError):
        vault.announce(job_id, job)


@pytest.mark.parametrize("change", [{"binding_key": b""}, {"enc": b"x" * 31}])
def test_a_malformed_job_is_refused(change: dict[str, Any]) -> None:
    vault, job = make()
    with pytest.raises(CallerError, match="length"):
        vault.announce(JOB_ID, dataclasses.replace(job, **change))


def test_announced_jobs_are_bounded_and_not_repeated() -> None:
    vault, job = make(job_capacity=1)
    vault.announce(JOB_ID, job)
    with pytest.raises(CallerError, match="already"):
        vault.announce(JOB_ID, job)
    with pytest.raises(OverCapacity):
        vault.announce(b"2" * 16, job)


def test_everything_is_forgotten_with_the_custodian() -> None:
    vault, job = make()
    vault.announce(JOB_ID, job)
    vault.forget()
    with pytest.raises(NotAdmitted):
        vault.admit(JOB_ID, job)
    vault.announce(JOB_ID, job)
    with pytest.raises(UnknownKey):
        vault.admit(JOB_ID, job)


def test_key_numbers_go_up_wrap_and_skip_those_in_use() -> None:
    vault = Vault(X25519_SHA256_AES128GCM)
    assert [vault.make_key()[0] for _ in range(3)] == [0, 1, 2]
    vault.retire(1)
    assert [vault.make_key()[0] for _ in range(KEY_NUMBERS - 3)] == list(range(3, KEY_NUMBERS))
    assert vault.make_key()[0] == 1
    with pytest.raises(OverCapacity, match="256"):
        vault.make_key()


def test_reprs_show_no_key() -> None:
    _, job = make()
    assert repr(job) == "Job(key_number=0)"
