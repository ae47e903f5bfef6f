"""Whatever dies in mid-answer, the client hears of it within its deadline, and the node serves again."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from doubles.running_node import RunningNode, wait_until

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]
LONG = ("Tell me a very long story.", "--ignore-eos", "--max-tokens", "4000")


def victims(node: RunningNode, name: str, before: set[int]) -> set[int]:
    """Pids to kill. The pair that serves was warm before it was taken, so killing every warm one hits it."""
    if name == "app":
        return node.pids_of("tie.cloud_app") & before
    if name == "helper":
        return node.pids_of("tie.cloudboard.helper") & before
    if name == "cloudboardd":
        return {node.pid("cloudboardd")}
    program = {"stub": "triton_python_backend_stub", "tritonserver": "tritonserver"}[name]
    family = psutil.Process(node.pid("afm_runtime")).children(recursive=True)
    return {process.pid for process in family if Path((process.cmdline() or [""])[0]).name == program}


@pytest.mark.parametrize("name", ["app", "helper", "stub", "tritonserver", "cloudboardd"])
def test_a_death_in_mid_answer_is_told_and_survived(own_node: RunningNode, name: str) -> None:
    before = own_node.per_request_pids()
    asking = own_node.start_asking(*LONG)
    assert asking.stdout is not None
    assert "delta" in asking.stdout.readline()
    targets = victims(own_node, name, before)
    assert targets, f"no {name} found"
    begin = time.monotonic()
    for pid in targets:
        os.kill(pid, signal.SIGKILL)
    out, err = asking.communicate(timeout=60)
    assert time.monotonic() - begin < 30
    events = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    told = [event for event in events if "error" in event or "truncated" in event]
    assert told, (asking.returncode, out[-500:], err[-500:])
    assert asking.returncode not in (0, 130)
    wait_until(lambda: own_node.ask("Say hi.", "--max-tokens", "2").exit_code == 0, "the node serves again", 60)
