"""How `tie-vre` shows an answer: text as it streams, or one JSON event a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import IO, Any, Final, Protocol

from tie.vre.collected import Collected
from tie.vre.events import Delta, Event, Finish, NodeError, Truncated
from tie.vre.exits import Exit

_CONTROL_CHARACTERS: Final = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}

_CALL: Final = "[tool call] "


class Printer(Protocol):
    def event(self, event: Event) -> None:
        """Shows one event at once."""

    def failure(self, kind: str, message: str, where: str = "") -> None:
        """Shows what kept an answer from coming at all."""

    def close(self) -> None:
        """After the last event."""


class JsonPrinter:
    """Contract messages by field name, `{"delta": {"index": 0, "text": …}}`, each line flushed."""

    def __init__(self, out: IO[str]) -> None:
        self._out = out

    def event(self, event: Event) -> None:
        self._line({event.name: event.to_fields()})

    def failure(self, kind: str, message: str, where: str = "") -> None:
        self._line({"error": {"kind": kind, "message": message, "where": where}})

    def close(self) -> None:
        return

    def _line(self, value: dict[str, Any]) -> None:
        self._out.write(json.dumps(value, ensure_ascii=False) + "\n")
        self._out.flush()


class TextPrinter:
    """The only choice as it streams; several choices when they are done. The rest on standard error."""

    def __init__(self, out: IO[str], notes: IO[str], choices: int) -> None:
        self._out, self._notes = out, notes
        self._waiting = Collected() if choices > 1 else None
        self._ends_in_newline = True
        self._is_in_call = False

    def event(self, event: Event) -> None:
        match event:
            case Delta() if self._waiting is None:
                self._delta(event)
            case Delta() | Finish() if self._waiting is not None:
                self._waiting.add(event)
            case NodeError():
                where = f" ({event.where})" if event.where else ""
                self._note(f"error: {event.kind}{where}: {event.message}")
            case Truncated():
                self._note(f"[truncated] {event.reason}")

    def failure(self, kind: str, message: str, where: str = "") -> None:
        self._note(f"{kind}: {message}")

    def close(self) -> None:
        for choice in self._waiting.choices if self._waiting else ():
            self._write(f"[{choice.index}] {choice.text}\n")
            for call in choice.tool_calls:
                self._write(f"[{choice.index}] {_CALL}{call.name} {call.arguments_json}\n")
        if not self._ends_in_newline:
            self._write("\n")

    def _delta(self, delta: Delta) -> None:
        """A call begins a line and ends it: its name, a space, its arguments as JSON."""
        if delta.text and self._is_in_call:
            self._write("\n")
        if delta.tool_call is not None and delta.tool_call.tool:
            self._write(("" if self._ends_in_newline else "\n") + f"{_CALL}{delta.tool_call.tool} ")
        self._is_in_call = delta.tool_call is not None or (self._is_in_call and not delta.text)
        self._write(delta.tool_call.arguments_json if delta.tool_call is not None else delta.text)

    def _write(self, text: str) -> None:
        if text:
            # A model's words must not drive the terminal they are shown on.
            self._out.write(text.translate(_CONTROL_CHARACTERS) if self._out.isatty() else text)
            self._out.flush()
            self._ends_in_newline = text.endswith("\n")

    def _note(self, line: str) -> None:
        if not self._ends_in_newline:
            self._write("\n")
        self._notes.write(f"tie-vre: {line}\n")
        self._notes.flush()


def show(events: Iterable[Event], printer: Printer) -> Exit:
    """Prints every event as it comes; what the answer was, as an exit code."""
    verdict = Exit.OK
    for event in events:
        printer.event(event)
        if isinstance(event, NodeError):
            verdict = Exit.NODE_ERROR
        elif isinstance(event, Truncated):
            verdict = Exit.TRUNCATED
    return verdict


def open_printer(*, as_json: bool, choices: int) -> Printer:
    return JsonPrinter(sys.stdout) if as_json else TextPrinter(sys.stdout, sys.stderr, choices)
