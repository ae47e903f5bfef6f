"""Deals a step's tokens out: to every sequence that decodes, then to prompts.

Of what is left for prompts, the oldest gets a quarter at least, so that it gets on whatever else comes; the rest goes
to the shortest interactive ones first, so that a short question does not wait for a long document.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tie.afm_runtime.sequence import Sequence

OLDEST_SHARE: Final = 4


class Row(NamedTuple):
    sequence: Sequence
    query_len: int
    samples: bool


def deal(running: Iterable[Sequence], budget: int) -> list[Row]:
    """Rows of one step, decoding ones first. `running` begins with the oldest; none of them waits for another."""
    decoding: list[Row] = []
    prompts: list[Sequence] = []
    for sequence in running:
        if sequence.pending == 1:
            decoding.append(Row(sequence, 1, True))
        elif sequence.pending > 1:
            prompts.append(sequence)
    return decoding + _deal_prompts(prompts, budget - len(decoding))


def _deal_prompts(prompts: list[Sequence], budget: int) -> list[Row]:
    if not prompts or budget <= 0:
        return []
    oldest = prompts[0]
    kept = min(oldest.pending, max(1, budget // OLDEST_SHARE))
    budget -= kept
    rows = []
    for sequence in sorted(prompts, key=lambda prompt: (prompt.request.is_background, prompt.pending)):
        have = kept if sequence is oldest else 0
        count = min(sequence.pending, have + budget)
        budget -= count - have
        if count:
            rows.append(Row(sequence, count, count == sequence.pending))
    return rows
