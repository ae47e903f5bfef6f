"""Bones as the engine loop sees it (`forwarding.Forwarding`): conversions only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tie import bones
from tie.afm_runtime.forwarding import Ids, Logprobs, Mask, RowSampling, SamplingRules, Step, StepOutcome
from tie.catalog.description import BundleDescription


class BonesForwarding:
    """One model with its block pool. The descriptors are the caller's: Bones keeps its own.

    `adapters`: name and image of each, in the order by which a step numbers them.
    """

    def __init__(
        self,
        described: BundleDescription,
        weights: Sequence[int],
        adapters: Sequence[tuple[str, int]] = (),
        *,
        block_count: int,
        threads: int,
    ) -> None:
        self._model = bones.Model(described.model.to_json(), list(weights), list(adapters))
        self._adapter_count = len(adapters)
        self._engine = bones.Engine(
            self._model,
            block_count=block_count,
            block_size_tokens=described.kv.block_size_tokens,
            kv_dtype=described.kv.dtype,
            threads=threads,
        )
        self._vocab_size = described.model.vocab_size
        self._sampling: Sequence[RowSampling | None] = ()

    def warm(self) -> None:
        """One block of prompt and one token: reads every weight, so that the first request waits for no page fault.

        Then a token through each adapter, as far as there are blocks to do it at once.
        """
        length = min(self._engine.block_size_tokens, self._model.context_length)
        self._warm([length], None)
        if count := min(self._adapter_count, self._engine.block_count):
            self._warm([1] * count, np.arange(count, dtype=np.int32))

    def _warm(self, lengths: Sequence[int], adapters: Ids | None) -> None:
        rows = len(lengths)
        self.advance(
            Step(
                token_ids=np.zeros(sum(lengths), np.int32),
                query_lens=np.array(lengths, np.int32),
                context_lens=np.array(lengths, np.int32),
                block_tables=np.arange(rows, dtype=np.int32),
                block_table_offsets=np.arange(rows + 1, dtype=np.int32),
                sample=np.ones(rows, np.bool_),
                sampling=[RowSampling(SamplingRules(), 0, np.zeros(0, np.int32), length) for length in lengths],
                adapters=adapters,
            )
        )
        self.sample([None] * rows)
        self.zero_blocks(range(rows))

    def advance(self, step: Step) -> None:
        self._sampling = step.sampling
        self._engine.advance(
            bones.Batch(
                token_ids=step.token_ids,
                query_lens=step.query_lens,
                context_lens=step.context_lens,
                block_tables=step.block_tables,
                block_table_offsets=step.block_table_offsets,
                sample=step.sample,
                sampling=[None if sampling is None else _sampling(sampling) for sampling in step.sampling],
                adapters=step.adapters,
            )
        )

    def sample(self, masks: Sequence[Mask | None]) -> StepOutcome:
        outcome = self._engine.sample(self._allowed(masks))
        logprobs = [None if found is None else _logprobs(found) for found in outcome.logprobs]
        return StepOutcome(outcome.tokens.tolist(), [row for row, _ in outcome.errors], logprobs)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        self._engine.zero_blocks(list(blocks))

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        return self._engine.read_blocks(list(blocks))

    def write_blocks(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        self._engine.write_blocks(list(blocks), data)

    def _allowed(self, masks: Sequence[Mask | None]) -> NDArray[np.uint32] | None:
        """A bit for each token of each row: what its grammar allows, without the barred ones unless only they are left.

        None when no row forbids any.
        """
        rows = list(zip(self._sampling, masks, strict=True))
        if not any(row is not None and (row.barred or mask is not None) for row, mask in rows):
            return None
        allowed = np.full((len(rows), -(-self._vocab_size // 32)), 0xFFFFFFFF, np.uint32)
        for index, (row, mask) in enumerate(rows):
            if mask is not None:
                allowed[index] = mask
            if row is not None and row.barred:
                left = allowed[index].copy()
                for token in row.barred:
                    left[token // 32] &= np.uint32(0xFFFFFFFF ^ (1 << token % 32))
                if mask is None or left.any():
                    allowed[index] = left
        return allowed


def _sampling(row: RowSampling) -> bones.Sampling:
    rules = row.rules
    return bones.Sampling(
        temperature=rules.temperature,
        top_p=rules.top_p,
        top_k=rules.top_k,
        min_p=rules.min_p,
        repetition_penalty=rules.repetition_penalty,
        presence_penalty=rules.presence_penalty,
        frequency_penalty=rules.frequency_penalty,
        seed=rules.seed,
        choice_index=row.choice,
        logit_bias=list(rules.logit_bias),
        history=row.history if len(row.history) else None,
        prompt_len=row.prompt_len if len(row.history) else 0,
        logprobs=rules.logprobs,
    )


def _logprobs(found: Sequence[tuple[int, float]]) -> Logprobs:
    """Bones lists the sampled token first, then the likeliest."""
    return Logprobs(found[0][1], tuple(token for token, _ in found[1:]), tuple(value for _, value in found[1:]))
