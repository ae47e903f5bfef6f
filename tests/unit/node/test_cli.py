"""`tie up`, `tie status`, `tie metrics`, `tie down` as processes of their own, where no node runs or can run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tie.afm_runtime.control import ControlServer
from tie.api.afm_control.v1 import afm_control_pb2
from tie.contracts.paths import RunPaths
from tie.node import rundir

RUN = "import sys, typer; from tie.node.cli import register; app = typer.Typer(); register(app); app()"


def tie(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    names = {**os.environ, "TIE_RUN_DIR": "/absent", "TIE_BUNDLE": "/absent", **environment}
    command = [sys.executable, "-c", RUN, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=names, timeout=25)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--bundle", "/absent"), "no model bundle in /absent"),
        ((), "no model bundle in /absent"),
        (("--config", "/absent.toml"), "not a readable TOML file"),
    ],
)
def test_a_node_that_cannot_start_says_why(paths: RunPaths, arguments: tuple[str, ...], problem: str) -> None:
    done = tie("up", "--detach", "--run-dir", paths.root, *arguments)
    assert done.returncode == 1
    assert problem in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_run_directory_that_is_too_long_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bundle.toml").touch()
    done = tie("up", "--detach", "--run-dir", tmp_path / ("x" * 90), "--bundle", tmp_path)
    assert done.returncode == 1
    assert "choose a shorter run directory" in done.stderr


def test_zero_threads_is_wrong_usage(paths: RunPaths) -> None:
    assert tie("up", "--threads", "0", "--run-dir", paths.root).returncode == 2


def test_the_status_of_nothing_is_3_and_an_object(paths: RunPaths) -> None:
    done = tie("status", "--json", "--run-dir", paths.root)
    assert done.returncode == 3
    seen = json.loads(done.stdout)
    assert (seen["condition"], seen["processes"], seen["supervisor_pid"]) == ("stopped", [], 0)
    assert tie("status", TIE_RUN_DIR=str(paths.root)).returncode == 3


def test_the_metrics_of_nothing_are_a_line_that_says_so(paths: RunPaths) -> None:
    done = tie("metrics", "--run-dir", paths.root)
    assert done.returncode == 1
    assert done.stderr == "tie: no runtime listens for control: No such file or directory\n"


def test_the_metrics_of_a_runtime_are_a_table_or_an_object(paths: RunPaths) -> None:
    paths.runtime_control_socket.parent.mkdir(parents=True, exist_ok=True)
    status = afm_control_pb2.StatusResponse(metrics=afm_control_pb2.Metrics(steps=7, model_s=0.25))
    server = ControlServer(paths.runtime_control_socket, lambda _: afm_control_pb2.Response(status=status))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        table, found = tie("metrics", "--run-dir", paths.root), tie("metrics", "--json", "--run-dir", paths.root)
    finally:
        server.stop()
        thread.join(5)
    assert re.search(r"^steps +7 *$", table.stdout, re.MULTILINE)
    numbers = json.loads(found.stdout)
    assert (numbers["steps"], numbers["model_s"], numbers["masks"]) == (7, 0.25, 0)


def test_stopping_nothing_is_no_fault(paths: RunPaths) -> None:
    for directory in (paths.root, paths.root / "absent"):
        done = tie("down", "--run-dir", directory)
        assert (done.returncode, done.stdout) == (0, f"no node runs in {directory}\n")


def test_stopping_while_another_launch_is_at_work_is_refused(paths: RunPaths) -> None:
    with rundir.lock(paths):
        done = tie("down", "--run-dir", paths.root)
    assert done.returncode == 1
    assert "at work" in done.stderr
