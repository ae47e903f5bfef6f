"""The section [cloud_app] of the node's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from tie.contracts.limits import MAX_REQUEST_BYTES


@dataclass(frozen=True, slots=True)
class Config:
    max_request_bytes: int = MAX_REQUEST_BYTES
    request_timeout_s: float = 900.0
    """From Parameters to the last message; the helper may ask for less."""
    token_gap_timeout_s: float = 60.0
    cpu_limit_s: int = 60
    """Of this process over its whole life."""
