"""Many requests leave nothing behind, and a stopped node leaves nothing at all."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import psutil
import pytest
from doubles.running_node import RunningNode, running_node, wait_until

pytestmark = [pytest.mark.node, pytest.mark.timeout(900)]
IS_SOAK = os.environ.get("TIE_SOAK") == "1"
SEQUENTIAL = 200 if IS_SOAK else 24
CONCURRENT = 32 if IS_SOAK else 8
MEMORY_SLACK_BYTES = 24 << 20


def long_lived(node: RunningNode) -> dict[str, psutil.Process]:
    return {entry["name"]: psutil.Process(entry["pid"]) for entry in node.status()["processes"]}


def figures(node: RunningNode) -> dict[str, tuple[int, int]]:
    """Open descriptors and resident bytes of each long-lived process, Triton's own included."""
    found = {}
    for name, process in long_lived(node).items():
        found[name] = (process.num_fds(), process.memory_info().rss)
        if name == "afm_runtime":
            for child in process.children(recursive=True):
                found[f"runtime:{child.name()}"] = (child.num_fds(), child.memory_info().rss)
    return found


def settled(node: RunningNode) -> dict[str, tuple[int, int]]:
    wait_until(lambda: len(node.per_request_pids()) == 6, "three warm pairs and no other", 60)
    return figures(node)


def shm_names() -> set[str]:
    return set(os.listdir("/dev/shm"))


def test_requests_leave_no_process_descriptor_socket_or_memory(own_node: RunningNode) -> None:
    for _ in range(4):  # what is allocated once is allocated now
        assert own_node.ask("Say hi.", "--max-tokens", "2").exit_code == 0
    asyncio.run(concurrently(own_node, 4))
    before, shm_before = settled(own_node), shm_names()
    sockets_before = {path for path in own_node.run_dir.rglob("*") if path.is_socket()}
    for _ in range(SEQUENTIAL):
        assert own_node.ask("Say hi.", "--max-tokens", "2").exit_code == 0
    assert asyncio.run(concurrently(own_node, CONCURRENT)) == [0] * CONCURRENT
    after = settled(own_node)
    assert shm_names() == shm_before
    assert {path for path in own_node.run_dir.rglob("*") if path.is_socket()} == sockets_before
    assert after.keys() == before.keys()
    for name, (descriptors, resident) in after.items():
        assert descriptors <= before[name][0] + 2, (name, before[name], after[name])
        assert resident <= before[name][1] + MEMORY_SLACK_BYTES, (name, before[name], after[name])


async def concurrently(node: RunningNode, count: int) -> list[int]:
    async def one() -> int:
        asking = await asyncio.create_subprocess_exec(
            *node.command("ask", "--json", "Say hi.", "--max-tokens", "4"),
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        return await asyncio.wait_for(asking.wait(), 300)

    return await asyncio.gather(*(one() for _ in range(count)))


def test_a_stopped_node_leaves_nothing(smollm2: Path) -> None:
    shm_before = shm_names()
    temporary_before = {name for name in os.listdir("/tmp") if name.startswith("python_env_")}
    with running_node(smollm2) as node:
        assert node.ask("Say hi.", "--max-tokens", "2").exit_code == 0
        family = [
            child for process in long_lived(node).values() for child in (process, *process.children(recursive=True))
        ]
    assert not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert shm_names() <= shm_before
    assert {name for name in os.listdir("/tmp") if name.startswith("python_env_")} <= temporary_before
    assert not node.run_dir.exists()
