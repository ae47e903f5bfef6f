"""What every engine is asked to do: prompts of three lengths, one sequence decoding, several decoding together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from peers.serving import Session


@dataclass(frozen=True, slots=True)
class Workload:
    """One row of the report. Decoding goes on from sample to sample, in all engines alike."""

    name: str
    kind: Literal["prefill", "decode"]
    tokens: int
    """Of the prompt, or already in each sequence."""
    rounds: int
    sequences: int = 1
    steps: int = 0
    """Of decoding, in one sample."""

    def begin(self, session: Session) -> None:
        """Not timed, and warms up: the same work as a sample's, smaller where that takes long."""
        if self.kind == "decode":
            session.begin(self.sequences, self.tokens, 1 + self.steps * self.rounds)
        else:
            session.prefill(min(self.tokens, 512))

    def sample(self, session: Session) -> float:
        """Tokens per second, of all sequences together."""
        if self.kind == "prefill":
            return self.tokens / session.prefill(self.tokens)
        return self.sequences * self.steps / session.decode(self.steps)

    @property
    def mean_context(self) -> int:
        """Tokens that a decoded one looks back at, over all rounds."""
        return self.tokens + 1 + self.steps * self.rounds // 2


PREFILL = tuple(Workload(f"prefill_{n}", "prefill", n, rounds) for n, rounds in ((128, 7), (512, 5), (2048, 3)))
DECODE = tuple(Workload(f"decode_{n}", "decode", n, rounds=7, steps=16) for n in (128, 1024))
BATCH = tuple(
    Workload(f"batch_{n}", "decode", 128, rounds=5, sequences=n, steps=steps) for n, steps in ((4, 8), (16, 4), (64, 4))
)
WORKLOADS: Sequence[Workload] = PREFILL + DECODE + BATCH
QUICK: Sequence[Workload] = (
    Workload("prefill_128", "prefill", 128, rounds=2),
    Workload("decode_128", "decode", 128, rounds=2, steps=8),
    Workload("batch_4", "decode", 128, rounds=2, sequences=4, steps=4),
)
