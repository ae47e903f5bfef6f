"""Writes the rows of a plan as the flat arrays that the model takes."""

from __future__ import annotations

from collections.abc import Sequence as Many

import numpy as np

from tie.afm_runtime.forwarding import NO_ADAPTER, Ids, Step
from tie.afm_runtime.scheduling.dealing import Row
from tie.afm_runtime.sequence import Sequence


def step_of(rows: Many[Row]) -> Step:
    sequences = [row.sequence for row in rows]
    tables = [sequence.table for sequence in sequences]
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(table) for table in tables], out=offsets[1:])
    return Step(
        token_ids=np.concatenate([s.tokens[s.computed : s.computed + query_len] for s, query_len, _ in rows]),
        query_lens=np.array([row.query_len for row in rows], np.int32),
        context_lens=np.array([row.sequence.computed + row.query_len for row in rows], np.int32),
        block_tables=np.concatenate(tables),
        block_table_offsets=offsets,
        sample=np.array([row.samples for row in rows], np.bool_),
        sampling=[row.sequence.sampling() if row.samples else None for row in rows],
        adapters=_adapters_of(sequences),
    )


def _adapters_of(sequences: Many[Sequence]) -> Ids | None:
    adapters = [sequence.request.admitted.adapter for sequence in sequences]
    return np.array(adapters, np.int32) if any(adapter != NO_ADAPTER for adapter in adapters) else None
