"""The edge of a node as real processes: cloudboardd, key protection, helpers, and a fake app behind a real listener."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import grpc
import psutil
from doubles import fake_app
from doubles.device import Device

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.api.cloudboard.v1 import cloudboard_pb2_grpc as rpc
from tie.contracts.paths import RunPaths

LIMIT_S: Final = 20.0
LEASE_MS: Final = 5000


class EdgeNode:
    """Start with `async with`; everything is gone afterwards, and `leftovers` says what is not."""

    def __init__(self, root: Path, **cloudboardd: Any) -> None:
        self.paths = RunPaths(root)
        self.events = root / "events"
        self.settings: dict[str, Any] = {"pool_size": 1, "drain_timeout_s": 2} | cloudboardd
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.device: Device = None  # type: ignore[assignment]  # set by start
        self._lease: asyncio.Task[None] | None = None

    async def __aenter__(self) -> EdgeNode:
        for directory in self.paths.directories():
            directory.mkdir(mode=0o700, exist_ok=True)
        self.events.touch()
        self._write_config()
        try:
            self.start_app()
            self.start("key_protection", "tie.cloudboard.key_protection")
            await self.start_cloudboardd()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._lease is not None:
            self._lease.cancel()
        if self.device is not None:
            await self.device.close()
        for name in ("cloudboardd", "key_protection", "app"):
            if (process := self.processes.get(name)) is not None:
                process.terminate()
                await asyncio.to_thread(_reap, process)

    async def start_cloudboardd(self) -> None:
        """Returns when it serves and is ready."""
        self.paths.cloudboard_address.unlink(missing_ok=True)
        self.start("cloudboardd", "tie.cloudboard")
        await until(self.paths.cloudboard_address.exists, "cloudboardd's address")
        self.device = Device(self.paths.cloudboard_address.read_text().strip())
        self.keep_ready()
        await self.serving()

    def start(self, name: str, module: str) -> None:
        self._spawn(name, [sys.executable, "-m", module, "--config", str(self.paths.config)])

    def start_app(self) -> None:
        self._spawn("app", [sys.executable, fake_app.__file__, str(self.paths.app_socket), str(self.events)])

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        self.processes[name].send_signal(number)
        self.processes[name].wait(LIMIT_S)

    def helpers(self) -> list[psutil.Process]:
        """cloudboardd's helpers, oldest first."""
        parent = psutil.Process(self.processes["cloudboardd"].pid)
        return sorted(parent.children(), key=lambda process: process.create_time())

    async def publish(self, state: pb.State.ValueType, lease_ms: int = 0, **fields: Any) -> pb.PublishStateResponse:
        async with grpc.aio.insecure_channel(f"unix:{self.paths.node_state_socket}") as channel:
            request = pb.PublishStateRequest(state=state, lease_ms=lease_ms, **fields)
            response: pb.PublishStateResponse = await rpc.NodeStateStub(channel).PublishState(request, timeout=LIMIT_S)
            return response

    def keep_ready(self, **fields: Any) -> None:
        """Renews the lease until told otherwise."""

        async def renew() -> None:
            while True:
                try:
                    await self.publish(pb.STATE_READY, LEASE_MS, **({"model": "m", "release": "1"} | fields))
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.1)
                else:
                    await asyncio.sleep(1)

        self.stop_lease()
        self._lease = asyncio.get_running_loop().create_task(renew())

    def stop_lease(self) -> None:
        if self._lease is not None:
            self._lease.cancel()

    async def health(self) -> int:
        check: Any = self.device.channel.unary_unary("/grpc.health.v1.Health/Check")
        raw: bytes = await check(b"", timeout=LIMIT_S)
        return raw[1] if raw else 0

    async def serving(self, is_serving: bool = True) -> None:
        async with asyncio.timeout(LIMIT_S):
            watch: Any = self.device.channel.unary_stream("/grpc.health.v1.Health/Watch")
            async for raw in watch(b"", timeout=LIMIT_S):
                if (raw == b"\x08\x01") == is_serving:
                    return

    def log(self, name: str) -> list[dict[str, Any]]:
        lines = (self.paths.logs / f"{name}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    async def event(self, text: str, count: int = 1) -> None:
        """Waits until the fake app has noted `text` so many times."""
        await until(lambda: self.events.read_text().count(text) >= count, f"the app's event {text!r}")

    def _spawn(self, name: str, command: list[str]) -> None:
        with (self.paths.logs / f"{name}.jsonl").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)

    def _write_config(self) -> None:
        lines = ["[node]", f'run_dir = "{self.paths.root}"', 'bundle_dir = "/nonexistent"', 'log_level = "debug"']
        lines += ["[cloudboardd]", *(f"{key} = {json.dumps(value)}" for key, value in self.settings.items())]
        self.paths.config.write_text("\n".join(lines) + "\n")


def short_directory() -> tempfile.TemporaryDirectory[str]:
    """A run directory whose socket paths fit the kernel's limit."""
    return tempfile.TemporaryDirectory(prefix="tie", dir="/tmp")


async def until(holds: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
    """Returns when `holds`; there is no event to wait for in another process."""
    deadline = time.monotonic() + limit_s
    while not holds():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {limit_s} s")
        await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _reap(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
