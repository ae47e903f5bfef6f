"""Reads a JSON object that a request brings as text, within bounds, for templates that are to write it again."""

from __future__ import annotations

from typing import Any

from tie.catalog import strict_json
from tie.catalog.errors import BundleRejected
from tie.contracts.errors import InvalidRequest


def json_object(text: str, where: str, *, max_bytes: int, max_depth: int) -> dict[str, Any]:
    """Raises InvalidRequest."""
    data = text.encode("utf-8")
    if len(data) > max_bytes:
        raise InvalidRequest(where, f"has {len(data)} bytes, the limit is {max_bytes}")
    try:
        value = strict_json.loads(where, data)
    except BundleRejected:
        raise InvalidRequest(where, "is not JSON in which every key stands once") from None
    if not isinstance(value, dict):
        raise InvalidRequest(where, "is not a JSON object")
    if _is_deeper(value, max_depth):
        raise InvalidRequest(where, f"is nested deeper than {max_depth}")
    return value


def _is_deeper(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [inner for outer in level if isinstance(outer, dict | list) for inner in _members(outer)]
        if not level:
            return False
    return any(isinstance(inner, dict | list) for inner in level)


def _members(outer: dict[str, Any] | list[Any]) -> list[Any]:
    return outer if isinstance(outer, list) else list(outer.values())
