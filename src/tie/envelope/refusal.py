"""The one way in which sealed bytes fail: they do not open, or they are not shaped as the contract says."""

from __future__ import annotations

from tie.contracts.errors import CallerError


class EnvelopeRefused(CallerError):
    """A wrapped key, chunk or frame is malformed or was altered. The message tells which and why, never its bytes."""
