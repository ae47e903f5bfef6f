"""Bones as one of the engines: the same work as the peers do, asked of `tie.bones` in this process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from models import KvDtype
from numpy.typing import NDArray
from peers.serving import prompt, stopwatch

from tie.bones import Batch, Engine, Model, Sampling
from tie.catalog.bundle import open_bundle
from tie.catalog.signature import default_trusted_keys_path, load_trusted_keys

BLOCK_SIZE = 16
BLOCKS = 1024
"""Enough for 64 sequences of 128 tokens and what they grow by, and for one of 2048."""

Ids = NDArray[np.int32]


class Bones:
    """A session of `peers.serving`; sequence s owns the blocks from s · stride on."""

    def __init__(self, bundle: Path, threads: int, kv_dtype: KvDtype) -> None:
        with open_bundle(bundle, trusted_keys=load_trusted_keys(default_trusted_keys_path())) as opened:
            model = Model(opened.description.model.to_json(), list(opened.weight_fds()))
        self._engine = Engine(
            model, block_count=BLOCKS, block_size_tokens=BLOCK_SIZE, kv_dtype=kv_dtype, threads=threads
        )
        self.isa = self._engine.isa
        self._greedy = Sampling(temperature=0.0)
        self._sequences = self._position = self._stride = 0

    def prefill(self, tokens: int) -> float:
        self._stride = BLOCKS
        batch = self._batch([prompt(tokens)], tokens)
        elapsed = stopwatch()
        self._engine.forward(batch)
        return elapsed()

    def begin(self, sequences: int, context: int, steps: int) -> None:
        self.prefill(context)
        self._stride = -(-(context + steps) // BLOCK_SIZE)
        used = -(-context // BLOCK_SIZE)
        kept = self._engine.read_blocks(range(used))
        for first in range(self._stride, sequences * self._stride, self._stride):
            self._engine.write_blocks(range(first, first + used), kept)
        self._sequences, self._position = sequences, context
        self.decode(1)

    def decode(self, steps: int) -> float:
        ids = [prompt(1, sequence) for sequence in range(self._sequences)]
        batches = [self._batch(ids, self._position + step) for step in range(1, steps + 1)]
        self._position += steps
        elapsed = stopwatch()
        for batch in batches:
            self._engine.forward(batch)
        return elapsed()

    def _batch(self, ids: list[list[int]], context: int) -> Batch:
        rows, blocks = len(ids), -(-context // BLOCK_SIZE)
        tables = np.arange(rows, dtype=np.int32)[:, None] * self._stride + np.arange(blocks, dtype=np.int32)
        return Batch(
            token_ids=np.array(ids, np.int32).reshape(-1),
            query_lens=np.full(rows, len(ids[0]), np.int32),
            context_lens=np.full(rows, context, np.int32),
            block_tables=np.ascontiguousarray(tables.reshape(-1), np.int32),
            block_table_offsets=np.arange(0, (rows + 1) * blocks, blocks, dtype=np.int32),
            sample=np.ones(rows, np.bool_),
            sampling=[self._greedy] * rows,
        )
