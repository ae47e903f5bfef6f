"""Stops a node and proves it: in order while its supervisor can, by force where it cannot, nothing left in the end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tie.contracts.errors import PeerError, TieError
from tie.contracts.paths import RunPaths
from tie.node import processes, programs, rundir, supervisor

ORDERLY_BOUND_S: Final = 10.0 + sum(program.stop_wait_s for program in programs.NODE_PROGRAMS)
FORCED_GRACE_S: Final = 3.0
_POLL_S: Final = 0.05


class NotStopped(PeerError):
    """Processes of the node are left that even SIGKILL has not ended."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """What stopping found and did. `forced` names what its supervisor had not ended."""

    was_running: bool
    forced: tuple[str, ...]
    elapsed_s: float
    logs: Path


def stop(
    paths: RunPaths, orderly_bound_s: float = ORDERLY_BOUND_S, is_hurried: Callable[[], bool] = lambda: False
) -> Stopped:
    """Ends every process of this run directory and removes its sockets; doing it twice does no harm.

    Requests in flight may end within cloudboardd's drain bound, unless `is_hurried` says not to wait any longer.
    Raises NotStopped when a process is left.
    """
    began = time.monotonic()
    running = processes.of_node(paths)
    _ask_supervisor(paths, began + orderly_bound_s, is_hurried)
    remaining = processes.of_node(paths)
    forced = tuple(process.title for process in remaining)
    if remaining and (left := processes.end(paths, FORCED_GRACE_S)):
        names = ", ".join(f"{process.title} (pid {process.pid})" for process in left)
        raise NotStopped(f"still running in {paths.root} after SIGKILL: {names}")
    rundir.clear(paths)
    return Stopped(bool(running), forced, time.monotonic() - began, paths.logs)


def _ask_supervisor(paths: RunPaths, deadline: float, is_hurried: Callable[[], bool]) -> None:
    """Has supervisord stop its processes in order and waits for its end."""
    if (found := processes.supervisord_of(paths)) is None:
        return
    socket_path = rundir.supervisor_socket(paths)
    try:
        supervisor.request_shutdown(socket_path)
    except TieError:  # it does not listen yet or any more: a signal asks for the same
        processes.send([found], signal.SIGTERM)
    while time.monotonic() < deadline and not is_hurried():
        now = processes.read(found.pid)
        if now is None or now.start_ticks != found.start_ticks:
            return
        _nudge(socket_path)
        time.sleep(_POLL_S)


def _nudge(socket_path: Path) -> None:
    """supervisord looks at its children once a second, or when somebody talks to it."""
    try:
        supervisor.process_states(socket_path)
    except TieError:
        return
