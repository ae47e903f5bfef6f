"""What the runtime counts of its work: numbers only, kept by the engine's thread, read by the control socket's.

Names and meanings are those of `afm_control.v1.Metrics`, which holds each of them (docs/metrics.md).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tie.afm_runtime.paging.pool import BlockPool
from tie.afm_runtime.scheduling.scheduler import Scheduler
from tie.api.afm_control.v1 import afm_control_pb2


@dataclass(slots=True)
class Meters:
    """Since the start. Times in seconds."""

    started: float = dataclasses.field(default_factory=time.monotonic)
    requests_refused: int = 0
    """Counted by the thread that takes requests in."""
    requests_accepted: int = 0
    requests_finished: int = 0
    requests_failed: int = 0
    requests_cancelled: int = 0
    requests_stalled: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    tokens_computed: int = 0
    steps: int = 0
    steps_failed: int = 0
    rows: int = 0
    rows_last: int = 0
    rows_most: int = 0
    plan_s: float = 0.0
    model_s: float = 0.0
    mask_wait_s: float = 0.0
    deliver_s: float = 0.0
    masks: int = 0
    mask_s: float = 0.0
    mask_longest_s: float = 0.0

    def count_rows(self, rows: int) -> None:
        """Of one step."""
        self.steps += 1
        self.rows += rows
        self.rows_last = rows
        self.rows_most = max(self.rows_most, rows)

    def count_masks(self, seconds: Sequence[float]) -> None:
        """Of one step."""
        if seconds:
            self.masks += len(seconds)
            self.mask_s += sum(seconds)
            self.mask_longest_s = max(self.mask_longest_s, *seconds)


class Lap:
    """Time since it was last asked, or made."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last = time.perf_counter()

    def __call__(self) -> float:
        now = time.perf_counter()
        elapsed, self._last = now - self._last, now
        return elapsed


def read_metrics(meters: Meters, scheduler: Scheduler, pool: BlockPool) -> afm_control_pb2.Metrics:
    """Of this moment, from any thread: each number is whole, though one may be a step older than another."""
    counted = {field.name: getattr(meters, field.name) for field in dataclasses.fields(meters)}
    return afm_control_pb2.Metrics(
        uptime_s=time.monotonic() - counted.pop("started"),
        queued_interactive=scheduler.queued - scheduler.queued_background,
        queued_background=scheduler.queued_background,
        running=scheduler.running,
        blocks_total=pool.count,
        blocks_free=pool.free,
        preemptions=scheduler.preempted,
        prefix_hit_tokens=scheduler.shared_tokens,
        **counted,
    )
