"""What the scheduler is given to work with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    block_size: int
    step_token_budget: int
    max_running: int
    """Sequences, not requests."""
    max_queued: int
    """Requests; half of them may be background ones."""
    prefix_resident: int = 0
    """Blocks of the prefix pool that may have a copy in the engine's own cache."""
