"""What `tie up` shows while a node runs: a live board on a terminal, plain lines anywhere else."""

from __future__ import annotations

import shlex
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Any, Final, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tie.node.status import NodeCondition, NodeStatus, ProcessStatus

_COLOURS: Final = {
    "ready": "bold green",
    "running": "green",
    "starting": "yellow",
    "not ready": "yellow",
    "stopped": "dim",
}


class Board(Protocol):
    """Shows one look after another."""

    def show(self, seen: NodeStatus) -> None: ...

    def say(self, line: str) -> None: ...


def open_board(console: Console) -> AbstractContextManager[Board]:
    return LiveBoard(console) if console.is_terminal else PlainBoard(console)


class PlainBoard:
    """One line for each change of the node's condition."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = ""

    def show(self, seen: NodeStatus) -> None:
        line = headline(seen)
        if line != self._last:
            self.say(line)
            self._last = line

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        return


class LiveBoard:
    """A table that is redrawn in place; what is said stands above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._stack = ExitStack()

    def show(self, seen: NodeStatus) -> None:
        self._live.update(render(seen), refresh=True)

    def say(self, line: str) -> None:
        self._console.print(Text(line))

    def __enter__(self) -> Self:
        self._stack.enter_context(self._live)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.__exit__(kind, error, at)


def headline(seen: NodeStatus) -> str:
    """The node in one line."""
    model = f" · {seen.model} {seen.release}" if seen.model else ""
    address = f" · {seen.address}" if seen.address else ""
    problem = f" · {seen.problem}" if seen.problem else ""
    return f"node {seen.condition}{model}{address}{problem}"


def render(seen: NodeStatus, *, with_hint: bool = True) -> Group:
    """Headline, one row a process, load, and what to type next."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for column, justify in (
        ("process", "left"),
        ("state", "left"),
        ("pid", "right"),
        ("up", "right"),
        ("restarts", "right"),
    ):
        table.add_column(column, justify="right" if justify == "right" else "left")
    table.add_column("last end", style="dim")
    for process in seen.processes:
        table.add_row(*_cells(process))
    lines: list[Any] = [Text(headline(seen), style=_COLOURS.get(seen.condition, "yellow"))]
    if seen.processes:
        lines.append(table)
    if seen.load is not None:
        lines.append(Text(f"in flight {seen.load.current_batch_size} of {seen.load.max_batch_size}", style="dim"))
    if with_hint and seen.condition is NodeCondition.READY:
        lines.append(Text(hint(seen.run_dir), style="dim", no_wrap=True, overflow="ignore"))
    return Group(*lines)


def hint(run_dir: str) -> str:
    """How to ask this node something."""
    return f'ask it:  tie-vre --run-dir {shlex.quote(run_dir)} ask "What is the capital of Germany?"'


def describe_event(entry: dict[str, Any]) -> str:
    """A line of the supervisor's log for people; empty for what needs no mention."""
    name, event = str(entry.get("name", "?")), entry.get("event")
    if event == "process.ended":
        return f"{name} died ({entry.get('reason', 'unknown')}) and is started again"
    if event == "process.starting" and int(entry.get("attempt", 1)) > 1:
        return f"{name} was started again (start {entry['attempt']})"
    return ""


def _cells(process: ProcessStatus) -> tuple[Text | str, ...]:
    state = Text(process.state, style=_COLOURS.get(process.state, "red"))
    pid = str(process.pid) if process.pid else "-"
    return process.name, state, pid, _duration(process.uptime_s), str(process.restarts), process.last_end


def _duration(seconds: int) -> str:
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {seconds:02} s" if minutes else f"{seconds} s"
