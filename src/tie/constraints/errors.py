"""Why a constraint is refused. Texts hold the contract's and JSON Schema's own words and nothing of the constraint."""

from __future__ import annotations

from tie.contracts.errors import InvalidRequest, Unsupported


class NotEnforceable(Unsupported):
    """Well-formed, but nothing here could make every answer keep to it; names the keyword and its place."""


class BadConstraint(InvalidRequest):
    """Not well-formed, or beyond a limit."""
