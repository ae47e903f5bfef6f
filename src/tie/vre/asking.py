"""Runs one request for a person: connects, shows the answer as it comes, cancels on Ctrl-C, and ends with a code."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from tie.contracts.errors import InvalidRequest, TieError
from tie.vre.attestation import AttestationRefused
from tie.vre.client import Answer, Client
from tie.vre.errors import CallFailed, NodeUnreachable
from tie.vre.exits import Exit
from tie.vre.locate import Target
from tie.vre.printing import Printer, show

MAX_PROMPT_FILE_BYTES = 64 * 1024 * 1024


def connect(target: Target) -> Client:
    """A client of the node; says so when its attestation proves nothing."""
    if target.allow_development and target.is_own:
        note("development attestation of your own local node: it proves nothing, and is accepted")
    return Client(target.address, allow_development_attestation=target.allow_development)


def run(answer: Answer, printer: Printer) -> Exit:
    """Shows the answer. The first Ctrl-C cancels it on the node and shows what still comes; the second leaves."""
    try:
        with _cancelling(answer):
            verdict = show(answer, printer)
    except KeyboardInterrupt:
        verdict = Exit.CANCELLED
    except TieError as error:
        verdict = report(error, printer)
    printer.close()
    if answer.was_cancelled:
        note("cancelled")
        return Exit.CANCELLED
    return verdict


@contextmanager
def _cancelling(answer: Answer) -> Iterator[None]:
    def interrupt(_: int, __: FrameType | None) -> None:
        if answer.was_cancelled:
            raise KeyboardInterrupt
        answer.cancel()

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def report(error: TieError, printer: Printer) -> Exit:
    """Shows what kept an answer from coming, or ended it; its exit code."""
    printer.failure(kind_of(error), str(error), error.where if isinstance(error, InvalidRequest) else "")
    return exit_of(error)


def kind_of(error: TieError) -> str:
    """The word that `--json` shows for a failure outside the answer."""
    match error:
        case InvalidRequest():
            return "invalid_request"
        case AttestationRefused():
            return "attestation_refused"
        case NodeUnreachable():
            return "unavailable"
        case CallFailed():
            return error.kind
    return "bad_answer"


def exit_of(error: TieError) -> Exit:
    match error:
        case InvalidRequest():
            return Exit.USAGE
        case AttestationRefused():
            return Exit.ATTESTATION_REFUSED
        case NodeUnreachable():
            return Exit.UNREACHABLE
    return Exit.NODE_ERROR


def read_prompt(prompt: str | None, file: Path | None) -> str:
    """The prompt, the file's text, or both with an empty line between. Raises InvalidRequest."""
    parts = [prompt] if prompt is not None else []
    if file is not None:
        parts.append(read_file("prompt", file))
    if not parts:
        raise InvalidRequest("prompt", "is missing: give PROMPT or --file")
    return "\n\n".join(parts)


def read_file(where: str, file: Path) -> str:
    """A file's text, or that of standard input for -. Raises InvalidRequest."""
    try:
        if str(file) == "-":
            data = sys.stdin.buffer.read(MAX_PROMPT_FILE_BYTES + 1)
        else:
            with file.open("rb") as opened:
                data = opened.read(MAX_PROMPT_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(where, f"the file cannot be read: {error.strerror}") from error
    if len(data) > MAX_PROMPT_FILE_BYTES:
        raise InvalidRequest(where, f"the file is longer than {MAX_PROMPT_FILE_BYTES} bytes")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(where, f"the file is not UTF-8 at byte {error.start}") from None


def note(line: str) -> None:
    """A word on standard error, dim on a terminal."""
    dim, plain = ("\x1b[2m", "\x1b[0m") if sys.stderr.isatty() else ("", "")
    sys.stderr.write(f"{dim}tie-vre: {line}{plain}\n")
    sys.stderr.flush()
