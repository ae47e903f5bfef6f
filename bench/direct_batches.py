"""Bones alone on the batches that a node makes: prompts in chunks beside rows that decode, nothing in between."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tie.bones import Batch, Engine, Model, Sampling
from tie.catalog.bundle import open_bundle
from tie.catalog.signature import default_trusted_keys_path, load_trusted_keys


@dataclass(slots=True)
class _Row:
    blocks: range
    computed: int = 0


class Direct:
    """`budget`: tokens of a step at most, as the node has it."""

    def __init__(self, bundle: Path, threads: int, blocks: int, budget: int) -> None:
        with open_bundle(bundle, trusted_keys=load_trusted_keys(default_trusted_keys_path())) as opened:
            described = opened.description
            model = Model(described.model.to_json(), list(opened.weight_fds()))
        self._block, self._budget = described.kv.block_size_tokens, budget
        self._engine = Engine(
            model, block_count=blocks, block_size_tokens=self._block, kv_dtype=described.kv.dtype, threads=threads
        )
        self._greedy = Sampling(temperature=0.0)

    def run(self, rows: int, prompt: int, answer: int) -> float:
        """Seconds for as many sequences, all there from the start, to get their answers."""
        batches = self._plan(rows, prompt, answer)
        begin = time.perf_counter()
        for batch in batches:
            self._engine.forward(batch)
        return time.perf_counter() - begin

    def _plan(self, count: int, prompt: int, answer: int) -> list[Batch]:
        per = -(-(prompt + answer) // self._block)
        rows = [_Row(range(n * per, (n + 1) * per)) for n in range(count)]
        batches: list[Batch] = []
        while True:
            left, taken = self._budget, []
            going = [row for row in rows if row.computed < prompt + answer - 1]
            for row in sorted(going, key=lambda row: row.computed < prompt):  # those that decode come first
                size = min(left, prompt - row.computed) if row.computed < prompt else 1
                if size > 0:
                    taken.append((row, size))
                    left -= size
            if not taken:
                return batches
            batches.append(self._batch(taken, prompt))

    def _batch(self, taken: list[tuple[_Row, int]], prompt: int) -> Batch:
        for row, size in taken:
            row.computed += size
        tables = [row.blocks[: -(-row.computed // self._block)] for row, _ in taken]
        samples = [row.computed >= prompt for row, _ in taken]
        return Batch(
            token_ids=np.array([100 + n % 20_000 for _, size in taken for n in range(size)], np.int32),
            query_lens=np.array([size for _, size in taken], np.int32),
            context_lens=np.array([row.computed for row, _ in taken], np.int32),
            block_tables=np.array([block for table in tables for block in table], np.int32),
            block_table_offsets=np.cumsum([0, *map(len, tables)]).astype(np.int32),
            sample=np.array(samples),
            sampling=[self._greedy if sampled else None for sampled in samples],
        )
