"""Starts a node and waits until it serves; what goes wrong on the way is said with its reason, and undone."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tie.contracts.errors import NotReady, TieError
from tie.contracts.paths import RunPaths
from tie.node import log_lines, processes, programs, rundir, settings, status, stopping
from tie.node.programs import NODE_PROGRAMS, Program
from tie.node.settings import UpOptions

READY_BOUND_S: Final = 90.0
MAX_RESTARTS_WHILE_STARTING: Final = 2
_POLL_S: Final = 0.1


class StartFailed(TieError):
    """The node did not become ready; what was started has been stopped."""

    grpc_status = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Started:
    """A node whose supervisord runs. `supervisor` is its process where it is our child."""

    paths: RunPaths
    supervisor: subprocess.Popen[bytes]


def launch(
    options: UpOptions,
    environment: Mapping[str, str],
    *,
    is_detached: bool,
    members: tuple[Program, ...] = NODE_PROGRAMS,
) -> Started:
    """Writes the configuration and starts supervisord, which starts everything else.

    Raises ConfigError when the configuration cannot be used, or a node already runs in this directory. What an earlier
    node left behind there, after a crash of everything, is ended and cleared first.
    """
    paths = RunPaths(options.run_dir)
    document = settings.compose(options, environment)
    rundir.prepare(paths)
    with rundir.lock(paths):
        _refuse_or_recover(paths)
        settings.write(document, paths.config)
        config = rundir.supervisor_config(paths)
        config.write_text(programs.supervisord_config(paths, members), "utf-8")
        return Started(paths, _start_supervisord(paths, environment, is_detached=is_detached))


def _refuse_or_recover(paths: RunPaths) -> None:
    if (running := processes.supervisord_of(paths)) is not None:
        raise NotReady(
            f"a node already runs in {paths.root} (supervisord pid {running.pid}): "
            "`tie status` shows it, `tie down` ends it"
        )
    if left := processes.end(paths, grace_s=2.0):
        raise NotReady(f"an earlier node's processes do not end: pids {[process.pid for process in left]}")
    rundir.clear(paths)


def _start_supervisord(
    paths: RunPaths, environment: Mapping[str, str], *, is_detached: bool
) -> subprocess.Popen[bytes]:
    command = programs.python_command("supervisor.supervisord", "-c", str(rundir.supervisor_config(paths)))
    if not is_detached:  # a board that is killed takes its node with it; a detached node outlives its `tie up`
        command = programs.leashed(command)
    output = os.open(paths.logs / "supervisord.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=paths.root,
            env=programs.child_environment(environment, paths.root),
            start_new_session=True,
        )
    finally:
        os.close(output)


def wait_ready(
    started: Started, bound_s: float = READY_BOUND_S, on_look: Callable[[status.NodeStatus], None] = lambda _: None
) -> status.NodeStatus:
    """Until the node serves. Raises StartFailed with the reason, after stopping what was started."""
    deadline = time.monotonic() + bound_s
    while True:
        seen = status.look(started.paths)
        on_look(seen)
        if seen.condition is status.NodeCondition.READY:
            return seen
        if problem := why_hopeless(started, seen):
            break
        if time.monotonic() > deadline:
            problem = _with_last_words(started.paths, f"not ready after {bound_s:g} s: {seen.problem}", seen)
            break
        time.sleep(_POLL_S)
    stopping.stop(started.paths)
    started.supervisor.wait(timeout=5)
    raise StartFailed(f"the node did not start: {problem}")


def why_hopeless(started: Started, seen: status.NodeStatus) -> str:
    """Why waiting longer will not help; empty while it may."""
    if (code := started.supervisor.poll()) is not None:
        return f"supervisord ended with status {code}: {_tail(started.paths.logs / 'supervisord.out')}"
    for process in seen.processes:
        if process.restarts > MAX_RESTARTS_WHILE_STARTING or process.state == "fatal":
            said = log_lines.last_words(started.paths, process.name)
            return f"{process.name} ended {process.restarts} times ({process.last_end}), at last saying: {said}"
    return ""


def _with_last_words(paths: RunPaths, problem: str, seen: status.NodeStatus) -> str:
    down = [process.name for process in seen.processes if not process.pid or process.restarts]
    said = "; ".join(f"{name} last said: {log_lines.last_words(paths, name)}" for name in down)
    return f"{problem}; {said}" if said else problem


def _tail(path: Path) -> str:
    text = path.read_text("utf-8", "replace").strip() if path.is_file() else ""
    return text.splitlines()[-1] if text else "nothing was said"
