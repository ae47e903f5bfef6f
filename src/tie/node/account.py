"""What one request left in a node's logs, told for people: who served it, what took how long, who is gone."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from tie.contracts.paths import RunPaths
from tie.node import log_lines, processes

GONE_BOUND_S: Final = 5.0

# Log process → its summary event, what it is for, and which of its stages to show.
_SUMMARIES: Final = {
    "cloudboardd": ("request.ended", "held the stream, saw ciphertext only", {"total_ms": "in all"}),
    "cb_jobhelper": (
        "request.served",
        "opened the request, sealed the answer",
        {"open_ms": "opened after", "dispatch_ms": "handed over after", "seal_ms": "sealing took"},
    ),
    "tie-cloud-app": (
        "request.done",
        "read the prompt, streamed the answer",
        {
            "warmup_ms": "warmed up before",
            "intake_ms": "validate",
            "prompt_ms": "template and tokens",
            "first_token_ms": "first token",
            "decode_ms": "the rest",
        },
    ),
    "afm_runtime": (
        "request.ended",
        "ran the model on token ids",
        {"first_token_ms": "prefill and first token", "total_ms": "in all"},
    ),
}
PER_REQUEST: Final = frozenset({"cb_jobhelper", "tie-cloud-app"})


@dataclass(frozen=True, slots=True)
class Part:
    """One process's part in the request."""

    process: str
    pid: int
    duty: str
    stages: tuple[tuple[str, float], ...]
    prompt_tokens: int
    completion_tokens: int

    @property
    def is_per_request(self) -> bool:
        return self.process in PER_REQUEST


def of_last_request(paths: RunPaths) -> list[Part]:
    """Each process's part in the request that ended last, in the order of the path; short where logs lack one."""
    last: dict[str, dict[str, Any]] = {}
    for entry in log_lines.entries(paths):
        summary = _SUMMARIES.get(str(entry.get("process")))
        if summary is not None and entry["event"] == summary[0]:
            process = str(entry["process"])
            last[process] = max(last.get(process, entry), entry, key=lambda line: str(line.get("time", "")))
    return [_part(process, last[process]) for process in _SUMMARIES if process in last]


def await_ends(parts: Iterable[Part]) -> list[Part]:
    """The per-request processes that have not ended within the bound; asked of /proc, not of the logs."""
    deadline = time.monotonic() + GONE_BOUND_S
    while True:
        left = [part for part in parts if part.is_per_request and processes.read(part.pid) is not None]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.02)


def _part(process: str, entry: dict[str, Any]) -> Part:
    _, duty, named = _SUMMARIES[process]
    stages = tuple((label, float(entry[field])) for field, label in named.items() if field in entry)
    tokens = (int(entry.get("prompt_tokens", 0)), int(entry.get("completion_tokens", 0)))
    return Part(process, int(entry["pid"]), duty, stages, *tokens)
