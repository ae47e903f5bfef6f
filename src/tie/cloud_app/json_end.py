"""Finds where a JSON object ends, in bytes that come in pieces; whether it is well-formed is the grammar's matter."""

from __future__ import annotations

import re
from typing import Final

_PLAIN: Final = re.compile(rb'["{}\[\]]')
_IN_STRING: Final = re.compile(rb'["\\]')


class JsonEnd:
    """`feed` until `is_over`."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self.is_over = False

    def feed(self, data: bytes) -> int:
        """How many of these bytes belong to the object: all of them, unless it is over."""
        at = 0
        while at < len(data) and not self.is_over:
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._is_in_string else _PLAIN).search(data, at)
            if found is None:
                return len(data)
            at = found.end()
            self._take(found.group())
        return at

    def _take(self, sign: bytes) -> None:
        if sign == b'"':
            self._is_in_string = not self._is_in_string
        elif sign == b"\\":
            self._is_escaped = True
        else:
            self._depth += 1 if sign in b"{[" else -1
            self.is_over = self._depth == 0
