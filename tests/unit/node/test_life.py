"""A node of tiny programs under a real supervisord: it fails with a reason, is restarted, stopped, recovered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from unit.node.conftest import BROKEN, EDGE, IDLE, STUBBORN

from tie.contracts.errors import NotReady
from tie.contracts.paths import RunPaths
from tie.node import log_lines, processes, rundir, starting, status, stopping
from tie.node.programs import Program
from tie.node.settings import UpOptions
from tie.node.starting import Started, StartFailed
from tie.node.status import NodeCondition

Launch = Callable[..., Started]


@pytest.fixture
def launch(paths: RunPaths, options: UpOptions, environment: dict[str, str]) -> Iterator[Launch]:
    """Starts a node of these programs; its supervisor is ended and reaped afterwards."""
    started: list[Started] = []

    def run(*members: Program) -> Started:
        started.append(starting.launch(options, environment, is_detached=True, members=members))
        return started[-1]

    yield run
    stopping.stop(paths, orderly_bound_s=5)
    for node in started:
        node.supervisor.wait(5)


def until(holds: Callable[[], bool], bound_s: float = 15) -> None:
    deadline = time.monotonic() + bound_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def test_a_program_that_cannot_start_is_the_reason_and_nothing_is_left(paths: RunPaths, launch: Launch) -> None:
    started = launch(IDLE, BROKEN)
    with pytest.raises(StartFailed) as raised:
        starting.wait_ready(started, 20)
    message = str(raised.value)
    assert "broken ended" in message
    assert "exit status 7" in message
    assert "start.refused: bundle.toml: is not there" in message
    assert processes.of_node(paths) == []
    assert rundir.sockets_left(paths) == []


def test_a_node_that_does_not_become_ready_in_time_says_what_is_missing(paths: RunPaths, launch: Launch) -> None:
    with pytest.raises(StartFailed, match=r"not ready after 1 s: no node serves"):
        starting.wait_ready(launch(IDLE), 1)
    assert processes.of_node(paths) == []


def test_a_second_node_in_a_live_directory_is_refused(paths: RunPaths, launch: Launch) -> None:
    starting.wait_ready(launch(EDGE), 20)
    before = {process.pid for process in processes.of_node(paths)}
    with pytest.raises(NotReady, match="already runs"):
        launch(EDGE)
    assert {process.pid for process in processes.of_node(paths)} == before


def test_a_ready_node_stops_in_order_with_nothing_left_and_twice_is_once(paths: RunPaths, launch: Launch) -> None:
    seen = starting.wait_ready(launch(IDLE, EDGE), 20)
    assert (seen.model, seen.condition) == ("fake", NodeCondition.READY)
    assert [process.name for process in seen.processes] == ["cloudboardd", "idle"]
    assert len(processes.of_node(paths)) == 5  # supervisord, herald, both programs, one's child
    stopped = stopping.stop(paths)
    assert (stopped.was_running, stopped.forced) == (True, ())
    assert processes.of_node(paths) == []
    assert rundir.sockets_left(paths) == []
    assert (paths.logs / "cloudboardd.jsonl").read_text().startswith("{")
    again = stopping.stop(paths)
    assert again.was_running is False
    assert status.look(paths).condition is NodeCondition.STOPPED


def test_a_dead_process_is_restarted_and_said_so(paths: RunPaths, launch: Launch) -> None:
    started = launch(EDGE)
    (first,) = starting.wait_ready(started, 20).processes
    until(lambda: status.look(paths).processes[0].state == "running")
    os.kill(first.pid, signal.SIGKILL)
    until(lambda: status.look(paths).processes[0].restarts == 1)
    (second,) = starting.wait_ready(started, 20).processes
    assert second.pid != first.pid
    assert second.last_end == "terminated by SIGKILL"
    said = [entry for entry in log_lines.entries(paths) if entry["event"] == "process.ended"]
    assert [(entry["name"], entry["reason"]) for entry in said] == [("cloudboardd", "terminated by SIGKILL")]


def test_a_program_that_will_not_end_is_ended(paths: RunPaths, launch: Launch) -> None:
    starting.wait_ready(launch(STUBBORN, EDGE), 20)
    stopping.stop(paths)
    assert processes.of_node(paths) == []


def test_when_the_supervisor_is_killed_its_programs_end_and_the_directory_is_used_again(
    paths: RunPaths, launch: Launch
) -> None:
    started = launch(IDLE, EDGE, STUBBORN)
    starting.wait_ready(started, 20)
    until(lambda: (paths.logs / "stubborn.jsonl").exists())
    os.kill(started.supervisor.pid, signal.SIGKILL)
    started.supervisor.wait()
    until(lambda: {process.title for process in processes.of_node(paths)} <= {"doubles.programs.stubborn"})
    starting.wait_ready(launch(EDGE), 20)
    assert not [process for process in processes.of_node(paths) if process.title == "doubles.programs.stubborn"]


def test_a_foreground_node_ends_with_its_launcher(
    paths: RunPaths, options: UpOptions, environment: dict[str, str]
) -> None:
    script = f"""
import os, time
from pathlib import Path
from tie.node import starting
from tie.node.programs import Program
from tie.node.settings import UpOptions
options = UpOptions(Path({str(paths.root)!r}), Path({str(options.bundle)!r}))
edge = Program("cloudboardd", "doubles.programs.edge", 3)
starting.wait_ready(starting.launch(options, os.environ, is_detached=False, members=(edge,)), 20)
print("ready", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == b"ready\n"
        launcher.kill()
    until(lambda: processes.of_node(paths) == [])


def test_what_the_shell_holds_does_not_reach_the_programs(paths: RunPaths, launch: Launch) -> None:
    starting.wait_ready(launch(IDLE, EDGE), 20)
    for process in processes.of_node(paths):
        assert b"of the shell" not in Path(f"/proc/{process.pid}/environ").read_bytes()


def test_a_hurried_stop_does_not_wait_for_what_will_not_end(paths: RunPaths, launch: Launch) -> None:
    slow = Program("stubborn", "doubles.programs.stubborn", 60)
    starting.wait_ready(launch(slow, EDGE), 20)
    until(lambda: "doubles.programs.stubborn" in {process.title for process in processes.of_node(paths)})
    stopped = stopping.stop(paths, is_hurried=lambda: True)
    assert stopped.forced
    assert processes.of_node(paths) == []
