"""Drives an engine as a runtime would: each sequence has blocks of its own, taken in a shuffled order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tie.bones import Batch, Engine, Model, Outcome, Sampling

GREEDY = Sampling(0.0)
_OTHERS = 1000


@dataclass
class Chunk:
    """Tokens that one sequence feeds in one step."""

    sequence: int
    tokens: Sequence[int]
    sampling: Sampling | None = GREEDY


@dataclass
class Driver:
    engine: Engine
    seed: int = 0
    contexts: dict[int, int] = field(default_factory=dict)
    tables: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = np.random.default_rng(self.seed).permutation(self.engine.block_count).tolist()

    def batch(self, chunks: Sequence[Chunk], **extra: Any) -> Batch:
        size = self.engine.block_size_tokens
        for chunk in chunks:
            context = self.contexts.get(chunk.sequence, 0) + len(chunk.tokens)
            self.contexts[chunk.sequence] = context
            table = self.tables.setdefault(chunk.sequence, [])
            while len(table) * size < context:
                table.append(self.free.pop())
        tables = [self.tables[chunk.sequence] for chunk in chunks]
        arrays: dict[str, Any] = {
            "token_ids": int32([token for chunk in chunks for token in chunk.tokens]),
            "query_lens": int32([len(chunk.tokens) for chunk in chunks]),
            "context_lens": int32([self.contexts[chunk.sequence] for chunk in chunks]),
            "block_tables": int32([block for table in tables for block in table]),
            "block_table_offsets": int32(np.cumsum([0, *map(len, tables)])),
            "sample": np.array([chunk.sampling is not None for chunk in chunks]),
            "sampling": [chunk.sampling for chunk in chunks],
        }
        return Batch(**(arrays | extra))

    def step(self, chunks: Sequence[Chunk], **extra: Any) -> Outcome:
        return self.engine.forward(self.batch(chunks, **extra))

    def logits(self, chunks: Sequence[Chunk]) -> NDArray[np.float32]:
        """Of every token of the step."""
        found = self.step(chunks, want_all_logits=True).logits
        assert found is not None
        return found

    def follow(
        self, tokens: Sequence[int], splits: Sequence[int] = (), sequence: int = 0, company: int = 0, slot: int = 0
    ) -> NDArray[np.float32]:
        """Logits of every token of one sequence, fed in chunks that end at `splits`, as row `slot` beside `company`
        others, which feed some tokens at first and one a step afterwards."""
        found = []
        for begin, end in pairwise([0, *splits, len(tokens)]):
            lengths = [1 if begin else 1 + i % 5 for i in range(company)]
            rows = [Chunk(_OTHERS + i, [tokens[-i % len(tokens)]] * n, None) for i, n in enumerate(lengths)]
            rows.insert(slot, Chunk(sequence, tokens[begin:end], None))
            first = sum(len(row.tokens) for row in rows[:slot])
            found.append(self.logits(rows)[first : first + end - begin])
        return np.concatenate(found)

    def share(self, whose: int, blocks: int, sequence: int) -> None:
        """Lets a new sequence begin with another's first blocks, which are full."""
        self.tables[sequence] = self.tables[whose][:blocks]
        self.contexts[sequence] = blocks * self.engine.block_size_tokens


def int32(values: Any) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def driver(model: Model, seed: int = 0, **options: Any) -> Driver:
    settings: dict[str, Any] = {"block_count": 64, "block_size_tokens": 4, "kv_dtype": "f32", "threads": 1}
    return Driver(Engine(model, **(settings | options)), seed)


def tokens_of(count: int, seed: int = 0, vocab: int = 90) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return found
