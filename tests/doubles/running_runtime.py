"""The AFM Runtime in real Triton, started by its own host, with the scripted model behind it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from doubles import runtime_calls

from tie.api.afm.v1 import afm_pb2
from tie.clients.inference import Generation, InferenceClient
from tie.clients.runtime_link import RuntimeLink
from tie.contracts.errors import PeerGone
from tie.contracts.paths import RunPaths

ROOT = Path(__file__).parents[2]
MODEL = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from doubles import scripted_engine
from tie.afm_runtime import model

class TritonPythonModel(model.TritonPythonModel):
    def attach(self, node, runtime):
        return scripted_engine.attached(256, max_running=16, step_token_budget=64, max_queued=8)
"""


class RunningRuntime:
    """One host with its Triton. `run_dir` is short: a socket's path has a limit."""

    def __init__(self, run_dir: Path, model: str = MODEL, **settings: Any) -> None:
        self.paths = RunPaths(run_dir)
        self.log = run_dir / "log"
        repository = run_dir / "models" / "afm"
        (repository / "1").mkdir(parents=True)
        shutil.copy(ROOT / "containers/afm-runtime/model_repository/afm/config.pbtxt", repository)
        (repository / "1" / "model.py").write_text(model)
        values = {
            "triton_dir": str(ROOT / "build" / "triton"),
            "python": str(Path(sys.prefix) / "bin" / "python3"),
            "model_repository": str(repository.parent),
            **settings,
        }
        lines = [f'[node]\nrun_dir = "{run_dir}"\nbundle_dir = "/nonexistent"\n[afm_runtime]']
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        self.paths.config.write_text("\n".join(lines) + "\n")
        self.host: subprocess.Popen[bytes]

    def start(self, *wrapper: str) -> None:
        command = [*wrapper, sys.executable, "-m", "tie.afm_runtime", "--config", str(self.paths.config)]
        with self.log.open("ab") as log:
            self.host = subprocess.Popen(command, stderr=log, stdout=log)

    def wait_ready(self, timeout_s: float = 20.0) -> None:
        wait_until(lambda: self.host.poll() is not None or bool(self.events("host.ready")), timeout_s)
        assert self.host.poll() is None, self.log.read_text()

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    @property
    def server_pid(self) -> int:
        return int(self.events("host.server_started")[-1]["pid"])

    @property
    def stub_pid(self) -> int:
        return int(self.events("host.runtime_seen")[-1]["pid"])

    def link(self) -> RuntimeLink:
        return RuntimeLink.connect(self.paths.runtime_socket, 5)

    def stop(self, number: int = signal.SIGTERM) -> int:
        if self.host.poll() is None:
            self.host.send_signal(number)
        return self.host.wait(20)

    def leftovers(self) -> list[str]:
        """What a run must not leave: processes, sockets, notes."""
        found = [path.name for path in (self.paths.triton_socket, self.paths.runtime_socket) if path.exists()]
        found += [path.name for path in self.paths.triton_socket.parent.glob("*")]
        return found + [f"process {pid}" for pid in (self.server_pid, self.stub_pid) if is_running(pid)]


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, f"did not come about within {timeout_s} s"
        time.sleep(0.005)


@contextmanager
def running_runtime(**settings: Any) -> Iterator[RunningRuntime]:
    run_dir = Path(tempfile.mkdtemp(prefix="tie-afm-"))
    runtime = RunningRuntime(run_dir, **settings)
    try:
        runtime.start()
        runtime.wait_ready()
        yield runtime
    finally:
        runtime.stop()
        shutil.rmtree(run_dir, ignore_errors=True)


class Call:
    """One request with its own link: `collect` reads it to the end."""

    def __init__(self, runtime: RunningRuntime, client: InferenceClient, prompt: Sequence[int], **changes: Any) -> None:
        self.link = runtime.link()
        self.params = runtime_calls.params(changes.pop("ticket", self.link.ticket), **changes)
        self.replies: Generation = client.generate(prompt, self.params, deadline_s=30, token_gap_s=10)
        self.tokens: list[int] = []
        self.events: list[afm_pb2.GenerateEvent] = []

    def next(self) -> afm_pb2.GenerateEvent:
        reply = next(self.replies)
        self.tokens += reply.tokens
        self.events.append(reply.event)
        return reply.event

    def collect(self) -> Call:
        try:
            for reply in self.replies:
                self.tokens += reply.tokens
                self.events.append(reply.event)
        finally:
            self.link.close()
        return self

    def give_up(self) -> None:
        """Leaves without reading to the end, as no client of ours does."""
        self.replies.fail(PeerGone("given up"))
        self.link.close()

    @property
    def failure(self) -> str:
        """The kind of the failure, or nothing."""
        last = self.events[-1]
        return runtime_calls.name(last.failure.kind) if last.HasField("failure") else ""

    @property
    def reason(self) -> str:
        (finish,) = [finish for event in self.events for finish in event.finishes]
        return afm_pb2.FinishReason.Name(finish.reason).removeprefix("FINISH_REASON_")
