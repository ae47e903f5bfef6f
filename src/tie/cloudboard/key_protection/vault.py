"""Keys, announced jobs and the replay set of key protection. Decisions and memory only: no I/O, no cryptography."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import Final

from tie.contracts.errors import CallerError, NotAdmitted, OverCapacity, Replayed
from tie.envelope.suites import Suite

REPLAY_CAPACITY: Final = 1 << 18
"""Encs that one key opens before it is full and another must be made."""
JOB_CAPACITY: Final = 4096
JOB_ID_BYTES: Final = 16
KEY_NUMBERS: Final = 256


class UnknownKey(CallerError):
    """No key has this number: never made, or retired."""

    grpc_status = "NOT_FOUND"


@dataclass(slots=True)
class _Key:
    private: bytes = field(repr=False)
    opened: set[bytes] = field(default_factory=set, repr=False)


@dataclass(frozen=True, slots=True)
class Job:
    """What a helper must present, exactly, to open one enc."""

    binding_key: bytes = field(repr=False)
    key_number: int
    enc: bytes = field(repr=False)


class Vault:
    """Everything that ends with cloudboardd's connection."""

    def __init__(self, suite: Suite, replay_capacity: int = REPLAY_CAPACITY, job_capacity: int = JOB_CAPACITY) -> None:
        self._suite = suite
        self._replay_capacity, self._job_capacity = replay_capacity, job_capacity
        self._keys: dict[int, _Key] = {}
        self._jobs: dict[bytes, Job] = {}
        self._next_number = 0

    def make_key(self) -> tuple[int, bytes]:
        """A fresh key: its number and public half. Raises OverCapacity when all numbers are in use."""
        if len(self._keys) == KEY_NUMBERS:
            raise OverCapacity(f"all {KEY_NUMBERS} key numbers are in use: retire one first")
        while self._next_number in self._keys:
            self._next_number = (self._next_number + 1) % KEY_NUMBERS
        number, self._next_number = self._next_number, (self._next_number + 1) % KEY_NUMBERS
        private, public = self._suite.kem.generate()
        self._keys[number] = _Key(private)
        return number, public

    def retire(self, key_number: int) -> None:
        self._keys.pop(key_number, None)

    def announce(self, job_id: bytes, job: Job) -> None:
        """Raises CallerError for a malformed job or a repeated id, OverCapacity when too many wait."""
        if len(job_id) != JOB_ID_BYTES or job_id in self._jobs:
            raise CallerError(f"job id of {len(job_id)} bytes is malformed or already announced")
        if len(job.binding_key) != self._suite.kem.public_key_bytes or len(job.enc) != self._suite.kem.enc_bytes:
            raise CallerError("announced binding key or enc has the wrong length")
        if len(self._jobs) >= self._job_capacity:
            raise OverCapacity(f"{len(self._jobs)} jobs are announced, the limit is {self._job_capacity}")
        self._jobs[job_id] = job

    def end_job(self, job_id: bytes) -> None:
        self._jobs.pop(job_id, None)

    def admit(self, job_id: bytes, presented: Job) -> bytes:
        """The private key for this one opening; the job and its enc are used up, whatever happens next.

        Raises NotAdmitted, UnknownKey, Replayed, or OverCapacity when the key's replay set is full.
        """
        announced = self._jobs.pop(job_id, None)
        if announced is None or not _equal(announced, presented):
            raise NotAdmitted("no such job was announced with this binding key, key number and enc")
        key = self._keys.get(announced.key_number)
        if key is None:
            raise UnknownKey(f"key {announced.key_number} is unknown or retired")
        if announced.enc in key.opened:
            raise Replayed("this enc was opened before")
        if self.is_full(announced.key_number):
            raise OverCapacity(f"key {announced.key_number} has opened {self._replay_capacity} encs, its limit")
        key.opened.add(announced.enc)
        return key.private

    def is_full(self, key_number: int) -> bool:
        key = self._keys.get(key_number)
        return key is not None and len(key.opened) >= self._replay_capacity

    def forget(self) -> None:
        """Drops every key and job: cloudboardd is gone."""
        self._keys.clear()
        self._jobs.clear()


def _equal(announced: Job, presented: Job) -> bool:
    return (
        hmac.compare_digest(announced.binding_key, presented.binding_key)
        and hmac.compare_digest(announced.enc, presented.enc)
        and announced.key_number == presented.key_number
    )
