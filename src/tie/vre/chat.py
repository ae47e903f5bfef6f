"""`tie-vre chat`: a dialogue that is kept on this side alone and sent whole with every turn."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from tie.vre.asking import note, run
from tie.vre.client import Client
from tie.vre.collected import Collected
from tie.vre.events import Event
from tie.vre.exits import Exit
from tie.vre.printing import Printer, open_printer
from tie.vre.request import ChatMessage, Sampling, chat_request

HELP = "/reset forgets the dialogue, /system TEXT sets the system message and forgets it too, /quit ends"
_PROMPT = "> "


@dataclass(slots=True, repr=False)
class Dialogue:
    """What was said so far."""

    system: str | None = None
    turns: list[ChatMessage] = field(default_factory=list)

    def with_user(self, text: str) -> list[ChatMessage]:
        """The messages to send for this turn; nothing is kept yet."""
        first = [ChatMessage("system", self.system)] if self.system else []
        return [*first, *self.turns, ChatMessage("user", text)]

    def keep(self, user: str, assistant: str) -> None:
        self.turns += [ChatMessage("user", user), ChatMessage("assistant", assistant)]

    def reset(self, system: str | None) -> None:
        self.system, self.turns = system, []


@dataclass(slots=True)
class Chat:
    """One dialogue with one node."""

    client: Client
    sampling: Sampling
    dialogue: Dialogue
    model: str
    adapter: str
    is_background: bool
    timeout_s: float
    as_json: bool

    def converse(self) -> Exit:
        """Until /quit or the end of the input; the code is the last turn's."""
        verdict = Exit.OK
        for line in _lines():
            if line == "/quit":
                break
            if line.startswith("/"):
                self._command(line)
            elif line:
                verdict = self._turn(line)
        return verdict

    def _command(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "/reset":
            self.dialogue.reset(self.dialogue.system)
        elif word == "/system":
            self.dialogue.reset(rest.strip() or None)
        else:
            note(HELP)

    def _turn(self, text: str) -> Exit:
        messages = self.dialogue.with_user(text)
        request = chat_request(
            messages, self.sampling, model=self.model, adapter=self.adapter, background=self.is_background
        )
        answer = self.client.ask(request, timeout_s=self.timeout_s)
        printer = _Remembering(open_printer(as_json=self.as_json, choices=1))
        verdict = run(answer, printer)
        # A refused or failed turn is as if it had not been said; one that was cut short stays as far as it came.
        if verdict in (Exit.OK, Exit.CANCELLED) and printer.seen.text:
            self.dialogue.keep(text, printer.seen.text)
        return verdict


class _Remembering:
    """Shows through another printer and keeps the text for the next turn."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        self.seen = Collected()

    def event(self, event: Event) -> None:
        self.seen.add(event)
        self._printer.event(event)

    def failure(self, kind: str, message: str, where: str = "") -> None:
        self._printer.failure(kind, message, where)

    def close(self) -> None:
        self._printer.close()


def _lines() -> Iterator[str]:
    """What the person types, with line editing where there is a terminal; its history is never written anywhere."""
    if not sys.stdin.isatty():
        yield from (line.strip() for line in sys.stdin)
        return
    import readline  # noqa: F401 - input() edits lines once it is loaded

    note(HELP)
    while True:
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            line = input(_PROMPT).strip()
        except EOFError:
            sys.stdout.write("\n")
            return
        except KeyboardInterrupt:
            sys.stdout.write("\n")
            note("/quit or Ctrl-D ends")
            continue
        finally:
            signal.signal(signal.SIGINT, previous)
        yield line
