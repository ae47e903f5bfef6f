"""Reads a table (of TOML or JSON) key by key, so that nothing in it goes unchecked.

Every accessor takes its key out of the table and refuses a wrong type or range by name; `finish` refuses what is left.
Which keys there are is the caller's business.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from tie.catalog.errors import BundleRejected, CatalogError

_MISSING: Final = object()

Reject = Callable[[str, str], CatalogError]
"""Makes the error for a file and its fault."""


class Table:
    def __init__(self, file: str, values: Mapping[str, Any], prefix: str = "", reject: Reject = BundleRejected) -> None:
        self._file = file
        self._values = dict(values)
        self._prefix = prefix
        self._reject = reject

    def refusal(self, key: str, fault: str) -> CatalogError:
        return self._reject(self._file, f"key {self._prefix}{key} {fault}")

    def has(self, key: str) -> bool:
        return key in self._values

    def holds(self, key: str, value: object) -> bool:
        """Whether the key is there with just this value; it stays to be taken."""
        found = self._values.get(key, _MISSING)
        return type(found) is type(value) and found == value

    def integer(self, key: str, low: int, high: int) -> int:
        value = self._take(key)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.refusal(key, "must be an integer")
        if not low <= value <= high:
            raise self.refusal(key, f"is outside {low}..{high}")
        return value

    def number(self, key: str, low: float, high: float) -> float:
        value = self._take(key)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise self.refusal(key, "must be a number")
        if not low <= value <= high:  # also false for NaN
            raise self.refusal(key, f"is outside {low:g}..{high:g}")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self._take(key)
        if not isinstance(value, bool):
            raise self.refusal(key, "must be true or false")
        return value

    def text(self, key: str, pattern: re.Pattern[str]) -> str:
        value = self._take(key)
        if not isinstance(value, str) or pattern.fullmatch(value) is None:
            raise self.refusal(key, f"must be a string that matches {pattern.pattern}")
        return value

    def choice(self, key: str, *allowed: str) -> str:
        value = self._take(key)
        if not isinstance(value, str) or value not in allowed:
            raise self.refusal(key, f"must be one of {', '.join(allowed)}")
        return value

    def only(self, key: str, allowed: object) -> None:
        """A key that may be there, but with one value only."""
        value = self._take(key)
        if type(value) is not type(allowed) or value != allowed:
            raise self.refusal(key, f"must be {allowed!r}, nothing else is supported")

    def integers(self, key: str, low: int, high: int, *, most: int) -> tuple[int, ...]:
        """A list of 1 to `most` distinct integers."""
        values = self._take(key)
        if not isinstance(values, list) or not 1 <= len(values) <= most:
            raise self.refusal(key, f"must be a list of 1..{most} integers")
        for value in values:
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise self.refusal(key, f"holds something other than integers in {low}..{high}")
        if len(set(values)) != len(values):
            raise self.refusal(key, "holds a value twice")
        return tuple(values)

    def texts(self, key: str, pattern: re.Pattern[str], *, most: int) -> tuple[str, ...]:
        """A list of 1 to `most` strings, which may repeat."""
        values = self._take(key)
        if not isinstance(values, list) or not 1 <= len(values) <= most:
            raise self.refusal(key, f"must be a list of 1..{most} strings")
        if not all(isinstance(value, str) and pattern.fullmatch(value) for value in values):
            raise self.refusal(key, f"holds something other than strings that match {pattern.pattern}")
        return tuple(values)

    def tables(self, pattern: re.Pattern[str], *, most: int) -> dict[str, "Table"]:
        """All that is left, 1 to `most` tables under names of the caller's own choice."""
        name = self._prefix.removesuffix(".")
        if not 1 <= len(self._values) <= most or not all(pattern.fullmatch(key) for key in self._values):
            fault = f"key {name} must hold 1..{most} tables with names that match {pattern.pattern}"
            raise self._reject(self._file, fault)
        return {key: self.table(key) for key in list(self._values)}

    def table(self, key: str) -> "Table":
        value = self._take(key)
        if not isinstance(value, dict):
            raise self.refusal(key, "must be a table")
        return Table(self._file, value, f"{self._prefix}{key}.", self._reject)

    def finish(self) -> None:
        """Refuses the keys that nobody asked for: a misspelt key must not be a silently ignored one."""
        if self._values:
            key = min(self._values)
            shown = key if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", key) else f"of {len(key)} characters"
            raise self.refusal(shown, "is not known")

    def _take(self, key: str) -> Any:
        value = self._values.pop(key, _MISSING)
        if value is _MISSING:
            raise self.refusal(key, "is missing")
        return value
