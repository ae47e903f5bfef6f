"""Ends a completion: end-of-sequence and stop tokens, stop strings over token *bytes*, and the length.

Text is not this module's matter: stop strings are byte strings, matched across token borders, so a stop that begins
inside one token and ends inside another is found, and one that ends inside a character is too. The first match to be
*completed* wins, however the model cut its tokens; of matches that end together the one that begins first, then the one
listed first. What was sent before a match completed is the app's to hold back: it gets the tokens as they come, and at
the end the match's place.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol


class Reason(Enum):
    STOP_TOKEN = auto()
    STOP_STRING = auto()
    LENGTH = auto()
    GRAMMAR = auto()


@dataclass(frozen=True, slots=True)
class Stop:
    """Why it ended; for a stop string, which one and at which byte of the completion the match begins."""

    reason: Reason
    stop_index: int = 0
    byte_offset: int = 0


class TokenBytes(Protocol):
    """What each token id spells; empty for special tokens."""

    def __getitem__(self, token: int) -> bytes: ...


@dataclass(frozen=True, slots=True, repr=False)
class StopRules:
    """Of one request. An ending token has `min_tokens` before it; a stop string ends with the last of them or later."""

    max_tokens: int
    min_tokens: int
    ending_ids: frozenset[int]
    """Stop ids, and the EOS set unless that is to be ignored."""
    strings: tuple[bytes, ...]


_NONE: Final[frozenset[int]] = frozenset()


class StopWatch:
    """Follows one choice. Feed it every sampled token, in order, until it answers."""

    __slots__ = ("_bytes_before", "_count", "_keep", "_rules", "_tail", "_token_bytes")

    def __init__(self, rules: StopRules, token_bytes: TokenBytes) -> None:
        self._rules = rules
        self._token_bytes = token_bytes
        self._keep = max((len(stop) for stop in rules.strings), default=1) - 1
        self._tail = b""
        self._bytes_before = 0  # bytes of the completion that lie before `_tail`
        self._count = 0

    @property
    def count(self) -> int:
        """Tokens seen so far."""
        return self._count

    @property
    def barred(self) -> frozenset[int]:
        """Ids that the next token must not be."""
        return self._rules.ending_ids if self._count < self._rules.min_tokens else _NONE

    def feed(self, token: int) -> Stop | None:
        self._count += 1
        rules = self._rules
        if token in rules.ending_ids and self._count > rules.min_tokens:
            return Stop(Reason.STOP_TOKEN)
        if rules.strings and (match := self._match(self._token_bytes[token])) and self._count >= rules.min_tokens:
            return match
        if self._count >= rules.max_tokens:
            return Stop(Reason.LENGTH)
        return None

    def _match(self, new: bytes) -> Stop | None:
        tail_len = len(self._tail)
        window = self._tail + new
        best: tuple[int, int, int] | None = None  # end, begin, index: the smallest wins
        for index, stop in enumerate(self._rules.strings):
            # Only matches that end in the new bytes: earlier ones were answered, or came before min_tokens.
            begin = window.find(stop, max(0, tail_len - len(stop) + 1))
            if begin >= 0 and (best is None or (begin + len(stop), begin, index) < best):
                best = (begin + len(stop), begin, index)
        before = self._bytes_before
        cut = max(0, len(window) - self._keep)
        self._tail = window[cut:]
        self._bytes_before += cut
        return Stop(Reason.STOP_STRING, best[2], before + best[1]) if best else None
