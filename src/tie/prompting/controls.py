"""Control tokens: ids that steer a model, and the spellings by which templates name them.

Only what a bundle's template itself wrote may become one. `marking` tells whose writing a text is, `rendering` asks
here where the control tokens in the template's own writing are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Control:
    """A control token. Some swallow the white space beside them, as the tokenizer's author decided."""

    spelling: str
    token_id: int
    strips_left: bool = False
    strips_right: bool = False


class Controls:
    """All control tokens of one tokenizer, and where a text spells them: leftmost first, then longest."""

    def __init__(self, controls: Iterable[Control]) -> None:
        self._by_spelling = {control.spelling: control for control in controls if control.spelling}
        self.token_ids = frozenset(control.token_id for control in self._by_spelling.values())
        self._lengths = sorted({len(spelling) for spelling in self._by_spelling}, reverse=True)
        self._beginnings = frozenset(spelling[:n] for spelling in self._by_spelling for n in range(1, len(spelling)))
        self._endings = frozenset(spelling[n:] for spelling in self._by_spelling for n in range(1, len(spelling)))
        firsts = "".join(sorted({re.escape(spelling[0]) for spelling in self._by_spelling}))
        self._first = re.compile(f"[{firsts}]" if firsts else r"(?!)")

    @property
    def spellings(self) -> tuple[str, ...]:
        return tuple(self._by_spelling)

    def id_of(self, spelling: str) -> int:
        """Raises KeyError when `spelling` names no control token."""
        return self._by_spelling[spelling].token_id

    def spans(self, text: str) -> Iterator[tuple[int, int, Control]]:
        """Where `text` spells control tokens, with the white space that they swallow."""
        done = 0
        while (match := self._first.search(text, done)) is not None:
            control = self._at(text, start := match.start())
            if control is None:
                done = start + 1
                continue
            end = start + len(control.spelling)
            if control.strips_left:
                start = done + len(text[done:start].rstrip())
            if control.strips_right:
                end = len(text) - len(text[end:].lstrip())
            yield start, end, control
            done = end

    def split(self, text: str) -> Iterator[str | int]:
        """`text` as runs of ordinary text and ids of control tokens, in order; no run is empty."""
        done = 0
        for start, end, control in self.spans(text):
            if start > done:
                yield text[done:start]
            yield control.token_id
            done = end
        if done < len(text):
            yield text[done:]

    def open_ending(self, text: str) -> int:
        """Length of the longest end of `text` that begins a control token without completing it."""
        return next((n for n in self._piece_lengths(text) if text[-n:] in self._beginnings), 0)

    def open_beginning(self, text: str) -> int:
        """Length of the longest beginning of `text` that completes a control token begun before it."""
        return next((n for n in self._piece_lengths(text) if text[:n] in self._endings), 0)

    def _at(self, text: str, start: int) -> Control | None:
        found = (self._by_spelling.get(text[start : start + length]) for length in self._lengths)
        return next((control for control in found if control is not None), None)

    def _piece_lengths(self, text: str) -> range:
        return range(min(len(text), self._lengths[0] - 1 if self._lengths else 0), 0, -1)
