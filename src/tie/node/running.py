"""The two ways to run a node: left to itself once it is ready, or in the foreground under a board."""

from __future__ import annotations

import os
import select
import socket
from typing import Final

from rich.console import Console

from tie.node import board, log_lines, starting, status, stopping
from tie.node.settings import UpOptions
from tie.node.starting import Started, StartFailed
from tie.node.status import NodeCondition
from tie.node.stop_signal import stop_signal

_LOOK_EVERY_S: Final = 0.5


def start_and_leave(options: UpOptions, console: Console) -> None:
    """Returns when the node is ready. Raises StartFailed, with nothing left running, when it does not become so."""
    started = starting.launch(options, os.environ, is_detached=True)
    shown = board.PlainBoard(console)
    try:
        seen = starting.wait_ready(started, on_look=shown.show)
    except KeyboardInterrupt:
        stopping.stop(started.paths)
        raise
    shown.say(board.hint(seen.run_dir))


def run_in_foreground(options: UpOptions, console: Console) -> None:
    """Until Ctrl-C or SIGTERM. The node has ended when this returns or raises."""
    with stop_signal() as stop:
        started = starting.launch(options, os.environ, is_detached=False)
        try:
            with board.open_board(console) as shown:
                watch(started, shown, stop)
        finally:
            console.print(
                "stopping the node; what is being answered may end, a second Ctrl-C does not wait", style="dim"
            )
            _drain_signals(stop)
            stopped = stopping.stop(started.paths, is_hurried=lambda: _is_asked_to_stop(stop, 0))
            started.supervisor.wait(timeout=5)
    console.print(f"node stopped in {stopped.elapsed_s:.1f} s; logs: {stopped.logs}", soft_wrap=True)


def watch(started: Started, shown: board.Board, stop: socket.socket) -> None:
    """Shows the node until asked to stop. Raises StartFailed when it never became ready, or lost its supervisor."""
    events = log_lines.Follower(started.paths.logs / "supervisor.jsonl")
    was_ready = False
    while not _is_asked_to_stop(stop, _LOOK_EVERY_S):
        seen = status.look(started.paths)
        for entry in events.new_entries():
            if line := board.describe_event(entry):
                shown.say(line)
        shown.show(seen)
        was_ready = was_ready or seen.condition is NodeCondition.READY
        if not was_ready and (problem := starting.why_hopeless(started, seen)):
            raise StartFailed(f"the node did not start: {problem}")
        if (code := started.supervisor.poll()) is not None:
            if code:
                raise StartFailed(f"supervisord ended with status {code}")
            shown.say("the node was stopped by `tie down`")
            return


def _is_asked_to_stop(stop: socket.socket, within_s: float) -> bool:
    readable, _, _ = select.select([stop], [], [], within_s)
    return bool(readable)


def _drain_signals(stop: socket.socket) -> None:
    while _is_asked_to_stop(stop, 0):
        stop.recv(64)
