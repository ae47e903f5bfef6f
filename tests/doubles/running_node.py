"""A whole node under `tie up`, driven by the commands a person would use, and looked at through /proc."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[2]
PER_REQUEST_MODULES = ("tie.cloud_app", "tie.cloudboard.helper")


@dataclass(frozen=True)
class Answer:
    """What `tie-vre ask --json` printed."""

    exit_code: int
    events: list[dict[str, Any]]
    errors: str

    @property
    def text(self) -> str:
        return "".join(event["delta"].get("text", "") for event in self.events if "delta" in event)

    def first(self, kind: str) -> Any:
        return next((event[kind] for event in self.events if kind in event), None)


class RunningNode:
    """Started by `running_node`; `run_dir` is short, because a socket's path has a limit."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir

    def command(self, *arguments: str) -> list[str]:
        return [str(BIN / "tie-vre"), "--run-dir", str(self.run_dir), *arguments]

    def ask(self, *arguments: str, timeout_s: float = 60.0, stdin: str | None = None) -> Answer:
        done = subprocess.run(
            self.command("ask", "--json", *arguments), capture_output=True, text=True, timeout=timeout_s, input=stdin
        )
        events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        return Answer(done.returncode, events, done.stderr)

    def start_asking(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command("ask", "--json", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def status(self) -> dict[str, Any]:
        done = subprocess.run(
            [str(BIN / "tie"), "status", "--json", "--run-dir", str(self.run_dir)],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def pid(self, program: str) -> int:
        return int(next(entry["pid"] for entry in self.status()["processes"] if entry["name"] == program))

    def processes(self) -> dict[int, str]:
        """Every live process whose arguments name this run directory: pid to command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if str(self.run_dir) in line and int(entry.name) != os.getpid():
                found[int(entry.name)] = line
        return found

    def pids_of(self, module: str) -> set[int]:
        return {
            pid for pid, line in self.processes().items() if f"-m {module} " in line + " " and "/bin/sh" not in line
        }

    def per_request_pids(self) -> set[int]:
        return set().union(*(self.pids_of(module) for module in PER_REQUEST_MODULES))

    def logs(self) -> str:
        return "".join(
            path.read_text("utf-8", "replace") for path in sorted((self.run_dir / "logs").iterdir()) if path.is_file()
        )


def wait_until(holds: Callable[[], bool], what: str, bound_s: float = 20.0) -> None:
    """Polls until `holds()`; fails with `what` when the bound passes."""
    deadline = time.monotonic() + bound_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {bound_s:g} s: {what}"
        time.sleep(0.02)


@contextmanager
def running_node(bundle: Path, *options: str, config: str = "") -> Iterator[RunningNode]:
    """A node that is ready, and gone afterwards with nothing left of it."""
    run_dir = Path(tempfile.mkdtemp(prefix="tie-n-", dir="/tmp"))
    arguments = ["--run-dir", str(run_dir), "--bundle", str(bundle), *options]
    if config:
        (run_dir / "test.toml").write_text(config)
        arguments += ["--config", str(run_dir / "test.toml")]
    node = RunningNode(run_dir)
    try:
        up = subprocess.run(
            [str(BIN / "tie"), "up", "--detach", *arguments], capture_output=True, text=True, timeout=120
        )
        assert up.returncode == 0, up.stdout + up.stderr + node.logs()[-4000:]
        yield node
    finally:
        subprocess.run([str(BIN / "tie"), "down", "--run-dir", str(run_dir)], capture_output=True, timeout=90)
        shutil.rmtree(run_dir, ignore_errors=True)
