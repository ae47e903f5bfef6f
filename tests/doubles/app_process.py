"""A real tie-cloud-app process and the helper's end of its connection."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from tie.api.inference.v1 import inference_pb2
from tie.api.job.v1 import job_pb2
from tie.contracts.limits import RESPONSE_BUCKETS

WAIT_S: Final = 20.0
SOURCE: Final = Path(__file__).resolve().parents[2] / "src"


@dataclass(slots=True)
class Ended:
    """What a job came to; `outcome` is None when the connection ended without a verdict."""

    responses: list[inference_pb2.InferenceResponse] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    outcome: job_pb2.Outcome.ValueType | None = None

    @property
    def text(self) -> str:
        return "".join(response.delta.text for response in self.responses)

    @property
    def error(self) -> inference_pb2.Error:
        (error,) = (response.error for response in self.responses if response.HasField("error"))
        return error

    @property
    def finishes(self) -> list[tuple[int, int]]:
        return [(r.finish.index, r.finish.reason) for r in self.responses if r.HasField("finish")]


class AppProcess:
    """Speaks for the helper. Everything received has passed the checks of `_take`."""

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket, errors: IO[bytes]) -> None:
        self.process = process
        self.connection = connection
        self._errors = errors

    def send(self, **frame: Any) -> None:
        self.send_raw(job_pb2.JobFrame(**frame).SerializeToString())

    def send_raw(self, body: bytes) -> None:
        self.connection.sendall(len(body).to_bytes(4, "big") + body)

    def receive(self) -> job_pb2.JobFrame | None:
        head = self._read(4)
        if head is None:
            return None
        body = self._read(int.from_bytes(head, "big"))
        assert body is not None, "the app left inside a frame"
        return job_pb2.JobFrame.FromString(body)

    def warm(self) -> None:
        self.send(warmup=job_pb2.Warmup())
        frame = self.receive()
        assert frame is not None, f"the app did not warm up: {self.log()}"
        assert frame.HasField("warmup_done")

    def ask(self, request: inference_pb2.InferenceRequest | bytes, deadline_ms: int = 0, chunks: int = 1) -> None:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        self.send(parameters=job_pb2.Parameters(kv_request_key=bytes(32), deadline_ms=deadline_ms))
        step = max(1, -(-len(data) // chunks))
        parts = [data[at : at + step] for at in range(0, len(data), step)] or [b""]
        for n, part in enumerate(parts, 1):
            self.send(request_chunk=job_pb2.RequestChunk(data=part, is_final=n == len(parts)))

    def until_text(self, ended: Ended) -> None:
        """Reads until some text has come."""
        while not ended.text:
            frame = self.receive()
            assert frame is not None, "the app left before it said anything"
            _take(frame, ended)

    def until_end(self, ended: Ended | None = None) -> Ended:
        ended = ended if ended is not None else Ended()
        while (frame := self.receive()) is not None:
            assert ended.outcome is None, "something followed the verdict"
            _take(frame, ended)
        return ended

    def exit_code(self) -> int:
        return self.process.wait(WAIT_S)

    def log(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode()

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log().splitlines()]

    def _read(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                part = self.connection.recv(size - len(data))
            except ConnectionResetError:
                part = b""
            if not part:
                assert not data, "the app left inside a frame"
                return None
            data += part
        return data


@contextmanager
def app_process(config: Path, log: Path, *arguments: str) -> Iterator[AppProcess]:
    """Started as the launcher's acceptor starts it: its connection is fd 3."""
    ours, theirs = socket.socketpair()
    ours.settimeout(WAIT_S)
    become = 'exec 3<&0 0</dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
    command = [
        "/bin/sh",
        "-c",
        become,
        "sh",
        sys.executable,
        "-m",
        "tie.cloud_app",
        "--config",
        str(config),
        *arguments,
    ]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}
    with ours, log.open("w+b") as errors:
        with theirs:
            process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=errors, stderr=errors, env=environment)
        try:
            yield AppProcess(process, ours, errors)
        finally:
            process.kill()
            process.wait(WAIT_S)


def _take(frame: job_pb2.JobFrame, ended: Ended) -> None:
    if frame.HasField("end_job"):
        ended.outcome = frame.end_job.outcome
        return
    assert frame.HasField("response_chunk"), "the app sends responses and a verdict"
    data = frame.response_chunk.data
    assert len(data) in RESPONSE_BUCKETS
    response = inference_pb2.InferenceResponse.FromString(data)
    response.ClearField("padding")
    response.ClearField("padding_more")
    ended.sizes.append(len(data))
    ended.responses.append(response)
