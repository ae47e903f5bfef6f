"""What the engine loop asks of a model: to advance a batch of rows, then to sample those that are due.

Two calls, because what grammars allow is found meanwhile, on other threads. `tie.bones` does it in a node (through
`bones_forwarding`), a scripted double does it in tests. Arrays are flat; row r
of a step has `query_lens[r]` new tokens, the last of the `context_lens[r]` that its sequence has after the step, and
its KV lies in the blocks `block_tables[block_table_offsets[r]:block_table_offsets[r + 1]]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int32]
Mask = NDArray[np.uint32]
"""What a grammar allows: bit i of word j allows token 32 j + i."""
NO_ADAPTER: Final = -1


@dataclass(frozen=True, slots=True, repr=False)
class SamplingRules:
    """How one request's tokens are chosen; temperature 0 is argmax."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None

    @property
    def looks_back(self) -> bool:
        """Whether a choice depends on which tokens came before."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, repr=False)
class RowSampling:
    """The rules for one row of one step. `history` (prompt first) is empty unless the rules look back."""

    rules: SamplingRules
    choice: int
    history: Ids
    prompt_len: int
    barred: frozenset[int] = frozenset()
    """Ids that must not be chosen now: those that would end the answer before min_tokens."""


@dataclass(frozen=True, slots=True, repr=False)
class Step:
    token_ids: Ids
    query_lens: Ids
    context_lens: Ids
    block_tables: Ids
    block_table_offsets: Ids
    sample: NDArray[np.bool_]
    sampling: Sequence[RowSampling | None]
    adapters: Ids | None = None
    """One a row, NO_ADAPTER for the model as it is; None when no row has one."""


@dataclass(frozen=True, slots=True, repr=False)
class Logprobs:
    """Of one sampled token, and the likeliest alternatives beside it."""

    chosen: float
    ids: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, repr=False)
class StepOutcome:
    tokens: Sequence[int]
    """One a row; -1 where none was asked for or the row failed."""
    failed_rows: Sequence[int]
    """Rows whose logits were not finite or left nothing to choose from."""
    logprobs: Sequence[Logprobs | None]
    """One a row; None where none was asked for."""


class Forwarding(Protocol):
    """Called by the engine's thread only."""

    def advance(self, step: Step) -> None:
        """Writes the rows' KV. An exception means that the whole step did not happen."""

    def sample(self, masks: Sequence[Mask | None]) -> StepOutcome:
        """Samples where the step that was advanced last asks for it; as many masks as it has rows.

        A mask wins over a row's `barred` where it leaves no other token. An exception ends the step as in `advance`.
        """

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        """Overwrites the KV of these blocks with zeros before returning."""

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        """The bytes of these blocks, one after another."""

    def write_blocks(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        """Overwrites these blocks with bytes that `read_blocks` gave."""
