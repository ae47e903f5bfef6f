"""Deals a step's tokens out: to every sequence that decodes, then to prompts.

Of what is left for prompts, the oldest gets a quarter at least, so that it gets on whatever else comes; the rest goes
to the shortest interactive ones first, so that a short question does not wait for a long document. In a step in which
one of them comes to its first token, those that do not are given nothing beside that quarter: the step is short.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from tie.afm_runtime.sequence import Sequence

OLDEST_SHARE: Final = 4
LEAST_FOR_PROMPTS: Final = 16
"""Tokens of a step, however many sequences decode in it."""


class Row(NamedTuple):
    sequence: Sequence
    query_len: int
    samples: bool


def deal(running: Iterable[Sequence], tokens: int, most: int) -> list[Row]:
    """Rows of one step, decoding ones first. `running` begins with the oldest; none of them waits for another.

    `tokens` is what the step should have, `most` what it may have at all.
    """
    decoding: list[Row] = []
    prompts: list[Sequence] = []
    for sequence in running:
        if sequence.pending == 1:
            decoding.append(Row(sequence, 1, True))
        elif sequence.pending > 1:
            prompts.append(sequence)
    left = min(max(tokens - len(decoding), LEAST_FOR_PROMPTS), most - len(decoding))
    return decoding + _deal_prompts(prompts, left)


def _deal_prompts(prompts: list[Sequence], left: int) -> list[Row]:
    if not prompts or left <= 0:
        return []
    oldest = prompts[0]
    kept = min(oldest.pending, max(1, left // OLDEST_SHARE))
    left -= kept
    rows, one_completes = [], False
    for sequence in sorted(prompts, key=lambda prompt: (prompt.request.is_background, prompt.pending)):
        have = kept if sequence is oldest else 0
        completes = sequence.pending <= have + left
        count = sequence.pending if completes else have if one_completes else have + left
        one_completes |= completes
        left -= count - have
        if count:
            rows.append(Row(sequence, count, completes))
    return rows
