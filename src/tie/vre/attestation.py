"""Decides whether a node's attestation is good enough to seal a request to its key.

The reference node has only a development attestation, which proves nothing: it is refused unless that was allowed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.envelope.refusal import EnvelopeRefused
from tie.envelope.suites import Suite, suite_of
from tie.vre.errors import VreError

CLOCK_SKEW_S: Final = 300
_KINDS: Final = {pb.ATTESTATION_KIND_DEVELOPMENT: "development"}


class AttestationRefused(VreError):
    """The node's attestation does not vouch for its key; nothing was sealed to it."""


@dataclass(frozen=True, slots=True)
class NodeKey:
    """A key to seal to, and what its attestation says beside it."""

    key_id: bytes
    key_number: int
    suite: Suite
    public_key: bytes
    kind: str
    not_before_unix_s: int
    not_after_unix_s: int
    next_refresh_unix_s: int
    model: str
    release: str
    bundle_identity: bytes

    @property
    def is_development(self) -> bool:
        return self.kind == "development"

    def is_fresh(self, now_unix_s: float) -> bool:
        """Whether a request may be sealed without asking the node again."""
        return now_unix_s < min(self.next_refresh_unix_s, self.not_after_unix_s)


def verify(answer: pb.FetchAttestationResponse, *, allow_development: bool, now_unix_s: float) -> NodeKey:
    """The key that the attestation vouches for. Raises AttestationRefused."""
    if hashlib.sha256(answer.attestation_bundle).digest() != answer.key_id:
        raise AttestationRefused("attestation refused: the key id is not the bundle's SHA-256")
    bundle = pb.AttestationBundle()
    try:
        bundle.ParseFromString(answer.attestation_bundle)
    except ValueError as error:
        raise AttestationRefused("attestation refused: the bundle is malformed") from error
    _check_kind(bundle, allow_development=allow_development)
    _check_validity(bundle, now_unix_s)
    suite = _suite(bundle)
    return NodeKey(
        key_id=answer.key_id,
        key_number=bundle.key_number,
        suite=suite,
        public_key=bundle.public_key,
        kind=_KINDS[bundle.kind],
        not_before_unix_s=bundle.not_before_unix_s,
        not_after_unix_s=bundle.not_after_unix_s,
        next_refresh_unix_s=answer.next_refresh_unix_s,
        model=bundle.model,
        release=bundle.release,
        bundle_identity=bundle.bundle_identity,
    )


def _check_kind(bundle: pb.AttestationBundle, *, allow_development: bool) -> None:
    if bundle.kind not in _KINDS:
        raise AttestationRefused(f"attestation refused: kind {bundle.kind} is not known")
    if bundle.kind == pb.ATTESTATION_KIND_DEVELOPMENT and not allow_development:
        raise AttestationRefused(
            "attestation refused: it is a development one, which proves nothing; "
            "--allow-development-attestation accepts it"
        )


def _check_validity(bundle: pb.AttestationBundle, now_unix_s: float) -> None:
    if now_unix_s > bundle.not_after_unix_s + CLOCK_SKEW_S:
        raise AttestationRefused(f"attestation refused: it ended at {bundle.not_after_unix_s} (Unix time)")
    if now_unix_s < bundle.not_before_unix_s - CLOCK_SKEW_S:
        raise AttestationRefused(f"attestation refused: it begins at {bundle.not_before_unix_s} (Unix time)")


def _suite(bundle: pb.AttestationBundle) -> Suite:
    if bundle.key_number > 255:
        raise AttestationRefused(f"attestation refused: key number {bundle.key_number} is more than a byte")
    try:
        return suite_of(bundle.kem, bundle.kdf, bundle.aead)
    except EnvelopeRefused as error:
        raise AttestationRefused(f"attestation refused: {error}") from error
