"""Stop strings over a stream of bytes: what may yet become one is held back, everything else passes at once.

The first match to be *completed* wins, however the bytes were cut; of those that end together, the one that begins
first. The runtime applies the same rule to end the generation; this side keeps the match, and what began to be one,
from being shown.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Follows one choice. `feed` until `is_stopped`, then nothing more; `end` gives what was held in vain."""

    def __init__(self, stops: Sequence[bytes]) -> None:
        self._followers = [_Follower(stop) for stop in stops]
        self._held = b""
        self._released = 0
        self.is_stopped = False

    @property
    def released(self) -> int:
        """Bytes that have passed."""
        return self._released

    def feed(self, data: bytes, *, may_stop: bool = True) -> bytes:
        """What may be shown now. With `may_stop` false a match that ends in `data` counts as text."""
        if not self._followers or self.is_stopped:
            return b"" if self.is_stopped else self._release(data, len(data))
        text = self._held + data
        for end, byte in enumerate(data, len(self._held) + 1):
            matched = 0
            for follower in self._followers:
                if follower.advance(byte):
                    matched = max(matched, follower.length)
            if matched and may_stop:
                self.is_stopped = True
                return self._release(text, end - matched)
        return self._release(text, len(text) - max(follower.state for follower in self._followers))

    def cut(self, offset: int) -> bytes:
        """The runtime says that a stop string begins at this byte: shows what is held before it, and stops."""
        self.is_stopped = True
        return self._release(self._held, min(len(self._held), max(0, offset - self._released)))

    def end(self) -> bytes:
        """No more bytes come: what is held is text after all, unless a stop string was found."""
        return b"" if self.is_stopped else self._release(self._held, len(self._held))

    def _release(self, text: bytes, count: int) -> bytes:
        self._held = b"" if self.is_stopped else text[count:]
        self._released += count
        return text[:count]


class _Follower:
    """How much of one stop string the bytes so far end with (Knuth, Morris and Pratt)."""

    __slots__ = ("_fallback", "_stop", "length", "state")

    def __init__(self, stop: bytes) -> None:
        self._stop = stop
        self.length = len(stop)
        self.state = 0
        self._fallback = _fallbacks(stop)

    def advance(self, byte: int) -> bool:
        """Whether the stop string ends with this byte. The state is then its longest proper border."""
        state = self.state
        while state and self._stop[state] != byte:
            state = self._fallback[state]
        if self._stop[state] == byte:
            state += 1
        is_match = state == self.length
        self.state = self._fallback[state] if is_match else state
        return is_match


def _fallbacks(stop: bytes) -> list[int]:
    """For each length, the longest proper prefix of the stop string that also ends that much of it."""
    table = [0, 0]
    for n in range(1, len(stop)):
        state = table[n]
        while state and stop[state] != stop[n]:
            state = table[state]
        table.append(state + 1 if stop[state] == stop[n] else 0)
    return table
