"""One request out of a file, for tests and debugging, with no CloudBoard."""

from __future__ import annotations

import time
from pathlib import Path

from tie.cloud_app.config import Config
from tie.cloud_app.deadline import Deadline
from tie.cloud_app.outbox import FileSink
from tie.cloud_app.running import Running
from tie.cloud_app.warmup import warm_up
from tie.servicekit.config import NodeConfig


def serve_file(node: NodeConfig, config: Config, request: Path, responses: Path) -> bool:
    """The responses are written as they come, each after four bytes of its length."""
    begun = time.perf_counter()
    warmed = warm_up(node)
    times = {"warmup_ms": round((time.perf_counter() - begun) * 1000, 3)}
    with request.open("rb") as file:
        data = file.read(config.max_request_bytes + 1)
    return Running(FileSink(responses), warmed, config, Deadline(config.request_timeout_s)).run(data, times)
