"""Takes an answer apart into text and tool calls, as its bytes come.

What may yet become the marker that opens a call is held back; a call is told of once its name is known, its arguments
pass as they come. The grammar has bound everything from that marker on, so the bytes between are known in advance but
for the name and the arguments; anything else there is the runtime's fault. `end` takes the way of every step: half a
marker is text after all, an unfinished call stays as far as it came, and one without a name is not told of.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Protocol

from tie.cloud_app.json_end import JsonEnd
from tie.constraints.call_form import CallForm
from tie.contracts.errors import PeerError
from tie.prompting.detokenising import Utf8Stream

_ID_BYTES: Final = 18


@dataclass(frozen=True, slots=True, repr=False)
class CallBegun:
    """The first that is told of a call."""

    index: int
    call_id: str
    name: str


@dataclass(frozen=True, slots=True, repr=False)
class CallArguments:
    """More of its arguments."""

    index: int
    text: str


Piece = str | CallBegun | CallArguments


class Splitter(Protocol):
    """Follows one choice. `feed` and `control` in the order of the answer, then `end` once."""

    def feed(self, data: bytes) -> Iterator[Piece]: ...

    def control(self, token_id: int) -> Iterator[Piece]:
        """A token without spelling stands here."""

    def end(self) -> Iterator[Piece]: ...

    @property
    def has_called(self) -> bool:
        """A call is complete, and none is open."""


class AllText:
    """For requests without tools."""

    has_called: Final = False

    def __init__(self, characters: Utf8Stream) -> None:
        self._characters = characters

    def feed(self, data: bytes) -> Iterator[Piece]:
        yield from _if_any(self._characters.feed(data))

    def control(self, token_id: int) -> Iterator[Piece]:
        yield from ()

    def end(self) -> Iterator[Piece]:
        yield from _if_any(self._characters.end())


class _State(Enum):
    TEXT = auto()
    HEAD = auto()  # a call has been opened; what comes names the tool
    ARGUMENTS = auto()
    TAIL = auto()  # what closes the call
    AFTER = auto()  # white space that belongs between two calls, or text
    BROKEN = auto()  # the runtime let pass what it must not; nothing more is told


class CallSplitter:
    """For requests with tools that may be called. Raises PeerError for what the grammar cannot have let pass."""

    def __init__(self, form: CallForm, names: Sequence[str], characters: Utf8Stream) -> None:
        self._begin, self._end = form.begin, form.end
        self._begin_text = form.begin.encode("utf-8") if isinstance(form.begin, str) else b""
        self._heads = {form.head(name).encode("utf-8"): name for name in names}
        self._tail = (form.tail + (form.end if isinstance(form.end, str) else "")).encode("utf-8")
        self._between = form.between.encode("utf-8")
        self._state = _State.TEXT
        self._held = b""  # of the answer, not yet told of
        self._characters = characters  # of the text, or of the arguments at hand
        self._json = JsonEnd()
        self._count = 0

    @property
    def has_called(self) -> bool:
        return self._count > 0 and self._state in (_State.TEXT, _State.AFTER)

    def feed(self, data: bytes) -> Iterator[Piece]:
        self._held += data
        before = None
        # A state that is left, or bytes that are taken, may let more be taken.
        while before != (before := (self._state, len(self._held))):
            match self._state:
                case _State.TEXT:
                    yield from self._text()
                case _State.HEAD:
                    yield from self._name()
                case _State.ARGUMENTS:
                    yield from self._arguments()
                case _State.TAIL:
                    self._close()
                case _State.AFTER:
                    self._skip_between()
                case _State.BROKEN:
                    self._held = b""

    def control(self, token_id: int) -> Iterator[Piece]:
        """Tokens that are no markers pass: they are neither text nor part of a call."""
        if token_id == self._begin and self._state in (_State.TEXT, _State.AFTER):
            yield from self._open(self._held)
            self._held = b""
        elif token_id == self._end and self._state is _State.TAIL and self._held == self._tail:
            self._closed(b"")

    def end(self) -> Iterator[Piece]:
        if self._state in (_State.TEXT, _State.AFTER):
            yield from _if_any(self._characters.end(self._held))
        elif self._state is _State.ARGUMENTS:
            yield from self._told(self._characters.end())
        self._held = b""

    def _text(self) -> Iterator[Piece]:
        held = self._held
        if not self._begin_text:
            self._held = b""
            yield from _if_any(self._characters.feed(held))
        elif (at := held.find(self._begin_text)) >= 0:
            self._held = held[at + len(self._begin_text) :]
            yield from self._open(held[:at])
        else:
            shown = len(held) - _open_ending(held, self._begin_text)
            self._held = held[shown:]
            yield from _if_any(self._characters.feed(held[:shown]))

    def _open(self, text_before: bytes) -> Iterator[Piece]:
        yield from _if_any(self._characters.end(text_before))
        self._state = _State.HEAD

    def _name(self) -> Iterator[Piece]:
        head = next((head for head in self._heads if self._held.startswith(head)), None)
        if head is None:
            if not any(head.startswith(self._held) for head in self._heads):
                raise self._broken("begins")
            return
        self._held = self._held[len(head) :]
        self._state = _State.ARGUMENTS
        self._characters, self._json = Utf8Stream(drops_leading_space=False), JsonEnd()
        yield CallBegun(self._count, f"call_{secrets.token_urlsafe(_ID_BYTES)}", self._heads[head])

    def _arguments(self) -> Iterator[Piece]:
        taken = self._json.feed(self._held)
        data, self._held = self._held[:taken], self._held[taken:]
        if not self._json.is_over:
            yield from self._told(self._characters.feed(data))
            return
        yield from self._told(self._characters.end(data))
        self._state = _State.TAIL

    def _told(self, text: str) -> Iterator[Piece]:
        if text:
            yield CallArguments(self._count, text)

    def _close(self) -> None:
        held, tail = self._held, self._tail
        if not tail.startswith(held[: len(tail)]) or (len(held) > len(tail) and isinstance(self._end, int)):
            raise self._broken("ends")
        if len(held) >= len(tail) and isinstance(self._end, str):
            self._closed(held[len(tail) :])

    def _closed(self, rest: bytes) -> None:
        self._held, self._state = rest, _State.AFTER
        self._characters = Utf8Stream(drops_leading_space=False)
        self._count += 1

    def _broken(self, does: str) -> PeerError:
        self._state = _State.BROKEN
        return PeerError(f"the runtime let an answer go on in a way that {does} no call")

    def _skip_between(self) -> None:
        if len(self._held) >= len(self._between):
            self._held = self._held.removeprefix(self._between)
            self._state = _State.TEXT
        elif not self._between.startswith(self._held):
            self._state = _State.TEXT


def _open_ending(text: bytes, marker: bytes) -> int:
    """Length of the longest end of `text` that begins `marker`."""
    lengths = range(min(len(text), len(marker) - 1), 0, -1)
    return next((n for n in lengths if text.endswith(marker[:n])), 0)


def _if_any(text: str) -> Iterator[Piece]:
    if text:
        yield text
