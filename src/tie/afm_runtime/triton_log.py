"""Triton's own log lines as ours. Its text is not under our control, so once requests may have come only place and
severity of a line are kept; while it starts, when a text can tell nothing but why it does not, the text is too.

The stub writes JSON lines of ours into the same pipe: those pass unchanged.
"""

from __future__ import annotations

import re
import sys
from typing import Final

from tie.servicekit import logs

MAX_LINE_BYTES: Final = 16 * 1024
MAX_TEXT: Final = 500
_LINE: Final = re.compile(r"([IWEF])\d{4} [\d:.]+ \d+ ([\w./-]+:\d+)\] (.*)")


class TritonLog:
    """Feed it what the pipe yields."""

    def __init__(self) -> None:
        self._rest = b""
        self.is_serving = False
        """Set when the first request may come; from then on no text passes."""
        self._log = logs.logger()

    def feed(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest = b""
        for line in lines:
            self._line(line)

    def _line(self, raw: bytes) -> None:
        if raw.startswith(b"{"):
            sys.stderr.write(raw.decode("utf-8", "replace") + "\n")
            sys.stderr.flush()
            return
        match = _LINE.match(raw.decode("utf-8", "replace"))
        severity, place, text = match.groups() if match else ("W", "unknown", raw.decode("utf-8", "replace"))
        if severity == "I" or not text.strip():
            return
        if self.is_serving:
            self._log.warning("triton.says", kind=severity, location=place)
        else:
            self._log.warning("triton.says", kind=severity, location=place, reason=text[:MAX_TEXT])
