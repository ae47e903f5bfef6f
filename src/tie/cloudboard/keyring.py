"""The public side of the node's keys: what is published, what is still accepted, which wrapped keys were seen.

Memory and decisions only; the clock is passed in. A key vouches for one active release: when that changes, its keys
are retired at once, so that nobody is served by a release that the attestation did not name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.contracts.errors import InvalidRequest, NotReady, OverCapacity, Replayed
from tie.envelope.suites import Suite

REPLAY_CAPACITY: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class Workload:
    """The active bundle, as the controller names it."""

    model: str = ""
    release: str = ""
    bundle_identity: bytes = b""


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """In seconds: when a key is succeeded, when it ends, and how much longer it is accepted."""

    rotation_s: float
    lifetime_s: float
    grace_s: float


@dataclass(slots=True)
class PublishedKey:
    """A key with its attestation. Its id is the SHA-256 of the attestation."""

    key_number: int
    attestation: bytes
    key_id: bytes
    rotates_at: float
    accepted_until: float
    seen: set[bytes] = field(default_factory=set, repr=False)

    def note(self, wrapped_key: bytes, capacity: int) -> None:
        """Raises Replayed for one seen before, OverCapacity when no more can be remembered."""
        digest = hashlib.sha256(wrapped_key).digest()
        if digest in self.seen:
            raise Replayed("decryption_key.encrypted_payload was presented before: seal anew for another attempt")
        if len(self.seen) >= capacity:
            raise OverCapacity(f"this key has served {capacity} requests, its limit: fetch the attestation again")
        self.seen.add(digest)


class Keyring:
    """Keys in the order in which they were made; the last one is published."""

    def __init__(
        self, suite: Suite, lifetimes: Lifetimes, clock: Callable[[], float], replay_capacity: int = REPLAY_CAPACITY
    ) -> None:
        self._suite, self._lifetimes, self._clock = suite, lifetimes, clock
        self._replay_capacity = replay_capacity
        self._keys: list[PublishedKey] = []
        self._unattested: tuple[int, bytes] | None = None
        self._workload: Workload | None = None

    @property
    def current(self) -> PublishedKey | None:
        return self._keys[-1] if self._keys else None

    @property
    def accepted(self) -> tuple[PublishedKey, ...]:
        return tuple(self._keys)

    def add(self, key_number: int, public_key: bytes) -> None:
        """A key that key protection made. It is published once the active workload is known."""
        self._unattested = (key_number, public_key)
        self._attest()

    def serve(self, workload: Workload) -> tuple[int, ...]:
        """The active workload. When it changed: the numbers of the keys to retire; a new key is then due."""
        if workload == self._workload:
            return ()
        retired = tuple(key.key_number for key in self._keys)
        self._keys.clear()
        self._workload = workload
        self._attest()
        return retired

    def expire(self) -> tuple[int, ...]:
        """Drops the keys whose time is over: their numbers, to be retired."""
        now = self._clock()
        over = tuple(key.key_number for key in self._keys if key.accepted_until <= now)
        self._keys = [key for key in self._keys if key.accepted_until > now]
        return over

    def is_rotation_due(self) -> bool:
        """Whether another key should be made: none is there, or the current one has served its time or its count."""
        if self._unattested is not None:
            return False
        current = self.current
        return current is None or current.rotates_at <= self._clock() or len(current.seen) >= self._replay_capacity

    def next_change_s(self) -> float:
        """Seconds until `expire` or `is_rotation_due` can say something else."""
        times = [key.accepted_until for key in self._keys]
        if self.current is not None:
            times.append(self.current.rotates_at)
        return max(0.0, min(times, default=self._clock() + self._lifetimes.rotation_s) - self._clock())

    def clear(self) -> None:
        """Key protection is gone, and the private keys with it."""
        self._keys.clear()
        self._unattested = None

    def find(self, key_id: bytes) -> PublishedKey:
        """Raises InvalidRequest when no accepted key has this id."""
        now = self._clock()
        for key in self._keys:
            if key.key_id == key_id and now < key.accepted_until:
                return key
        raise InvalidRequest("decryption_key.key_id", "unknown or expired key: fetch the attestation again")

    def note(self, key: PublishedKey, wrapped_key: bytes) -> None:
        """Remembers that `wrapped_key` was presented. Raises Replayed or OverCapacity."""
        key.note(wrapped_key, self._replay_capacity)

    def attestation(self) -> pb.FetchAttestationResponse:
        """Raises NotReady while no key is published."""
        if (current := self.current) is None:
            raise NotReady("the node has no attested key yet")
        return pb.FetchAttestationResponse(
            attestation_bundle=current.attestation,
            key_id=current.key_id,
            next_refresh_unix_s=int(current.rotates_at),
            unpublished_key_ids=[key.key_id for key in self._keys[:-1]],
        )

    def _attest(self) -> None:
        if self._unattested is None or self._workload is None:
            return
        (key_number, public_key), self._unattested = self._unattested, None
        now = self._clock()
        ends_at = now + self._lifetimes.lifetime_s
        bundle = pb.AttestationBundle(
            kind=pb.ATTESTATION_KIND_DEVELOPMENT,
            key_number=key_number,
            kem=self._suite.kem.kem_id,
            kdf=self._suite.kdf_id,
            aead=self._suite.aead_id,
            public_key=public_key,
            not_before_unix_s=int(now),
            not_after_unix_s=int(ends_at),
            model=self._workload.model,
            release=self._workload.release,
            bundle_identity=self._workload.bundle_identity,
        ).SerializeToString(deterministic=True)
        key_id = hashlib.sha256(bundle).digest()
        rotates_at, accepted_until = now + self._lifetimes.rotation_s, ends_at + self._lifetimes.grace_s
        self._keys.append(PublishedKey(key_number, bundle, key_id, rotates_at, accepted_until))
