from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tie.contracts.paths import RunPaths
from tie.node import processes
from tie.node.programs import ENVIRONMENT_MARK

PAUSE = "import signal; signal.pause()"
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(code: str = PAUSE, *arguments: str, mark: str = "") -> subprocess.Popen[bytes]:
        environment = {ENVIRONMENT_MARK: mark} if mark else {}
        code = f"import sys; sys.stdout.write('.'); sys.stdout.flush(); {code}"
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], env=environment, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.read(1) == b"."  # its command line and signal handlers are in place
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def pids(paths: RunPaths) -> set[int]:
    return {process.pid for process in processes.of_node(paths)}


def test_a_process_that_merely_names_the_directory_is_not_the_nodes(paths: RunPaths, start: Start) -> None:
    start(PAUSE, "--run-dir", str(paths.root))
    start(PAUSE, str(paths.logs / "lease.jsonl"))
    start(PAUSE, "--config", str(paths.root / "user.toml"))
    start(PAUSE, "--config", f"{paths.config}x")
    assert pids(paths) == set()


def test_command_lines_marks_and_descendants_are_the_nodes(paths: RunPaths, start: Start) -> None:
    configured = start(PAUSE, "--config", str(paths.config))
    triton = start(PAUSE, "--grpc-address", f"unix:{paths.triton_socket_stem}")
    marked = start(mark=str(paths.root))
    other = start(mark=f"{paths.root}-other")
    parent = start(
        "import subprocess; p = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']); p.wait()",
        "--config",
        str(paths.config),
    )
    found = pids(paths)
    assert {configured.pid, triton.pid, marked.pid, parent.pid} < found | {0}
    assert other.pid not in found
    processes.end(paths, grace_s=2)
    assert other.poll() is None


def test_what_ignores_sigterm_is_killed(paths: RunPaths, start: Start) -> None:
    code = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(end='!', flush=True); {PAUSE}"
    stubborn = start(code, "--config", str(paths.config))
    assert stubborn.stdout is not None
    assert stubborn.stdout.read(1) == b"!"
    assert processes.end(paths, grace_s=0.1) == []
    assert stubborn.wait(5) == -signal.SIGKILL


def test_a_pid_that_was_given_to_another_process_is_left_alone(paths: RunPaths, start: Start) -> None:
    alive = start()
    seen = processes.read(alive.pid)
    assert seen is not None
    processes.send([dataclasses.replace(seen, start_ticks=seen.start_ticks - 1)], signal.SIGKILL)
    processes.send([dataclasses.replace(seen, pid=2**22 - 1)], signal.SIGKILL)
    assert alive.poll() is None


def test_the_caller_and_its_ancestors_are_never_the_nodes(paths: RunPaths, start: Start) -> None:
    code = (
        "import os; from pathlib import Path; from tie.node import processes; "
        "from tie.contracts.paths import RunPaths; "
        "found = processes.of_node(RunPaths(Path(sys.argv[2]).parent)); "
        "print([p.pid for p in found if p.pid in (os.getpid(), os.getppid())])"
    )
    caller = start(code, "--config", str(paths.config))
    assert caller.stdout is not None
    assert caller.stdout.read().strip() == b"[]"


def test_a_zombie_is_no_process(start: Start) -> None:
    ended = start("pass")
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert processes.read(ended.pid) is None


@pytest.mark.parametrize(
    ("arguments", "title"),
    [
        (("/usr/bin/python3", "-P", "-m", "tie.cloud_app", "--config", "x"), "tie.cloud_app"),
        (("/opt/t/tritonserver",), "tritonserver"),
        ((), "pid 7"),
    ],
)
def test_titles_are_for_people(arguments: tuple[str, ...], title: str) -> None:
    assert processes.Process(7, 1, 1, arguments, False).title == title
