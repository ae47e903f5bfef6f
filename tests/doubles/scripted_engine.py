"""A model that behaves: a `Forwarding` whose "KV" is the tokens themselves, kept in blocks as the real one keeps its.

It computes a row's next token from what it reads back through the row's block table, so a wrong table, a block handed
to two owners, a block not zeroed, or a prompt whose chunks do not meet shows as an error or as another token. The
prompt's first token may be a command (below); otherwise the next token is a digest of the context.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tie.afm_runtime.forwarding import NO_ADAPTER, Logprobs, Mask, RowSampling, Step, StepOutcome
from tie.afm_runtime.intake import Serves
from tie.afm_runtime.scheduling.limits import Limits
from tie.afm_runtime.serving import Attached

VOCAB = 1000
EOS = 2
ECHO = 900
"""[ECHO, a, b, c] answers a, b, c and EOS."""
NOT_FINITE = 901
"""The row that samples has logits that are not finite."""
RAISES = 902
"""The whole step raises."""
NEVER_ENDS = 903
"""Answers 5 for ever, unless barred by nothing: only limits end it."""
SLOW = 904
"""Like NEVER_ENDS, and each step takes 10 ms."""

IDENTITY = bytes(range(32))
CONTEXT = 256
BLOCK = 4
ADAPTERS = ("formal", "terse")
EMPTY = -7


class ScriptedEngine:
    """`on_step` is called with each step before it happens: tests look at batches there, or wait in it."""

    def __init__(
        self, block_count: int, block_size: int = BLOCK, on_step: Callable[[Step], None] | None = None
    ) -> None:
        self._kv = np.full((block_count, block_size), EMPTY, np.int64)
        self._block_size = block_size
        self.on_step = on_step
        self.steps = 0
        self.rows = 0
        self._advanced: tuple[Step, list[list[int]]] | None = None

    def advance(self, step: Step) -> None:
        if self.on_step is not None:
            self.on_step(step)
        self.steps += 1
        self.rows += len(step.query_lens)
        contexts = self._write_and_read(step)
        if any(context[0] == RAISES for context in contexts):
            raise RuntimeError("scripted")
        if any(context[0] == SLOW for context in contexts):
            time.sleep(0.01)
        self._advanced = step, contexts

    def sample(self, masks: Sequence[Mask | None]) -> StepOutcome:
        assert self._advanced is not None, "sampled once, after it was advanced"
        (step, contexts), self._advanced = self._advanced, None
        adapters = _adapters(step)
        tokens, failed = [], []
        logprobs: list[Logprobs | None] = []
        for row, (context, sampling, mask) in enumerate(zip(contexts, step.sampling, masks, strict=True)):
            assert (sampling is not None) == bool(step.sample[row])
            bad = context[0] == NOT_FINITE and sampling is not None
            token = -1 if sampling is None or bad else allowed_token(context, sampling, mask, adapters[row])
            failed += [row] if bad else []
            tokens.append(token)
            wants = sampling is not None and sampling.rules.logprobs is not None and not bad
            logprobs.append(Logprobs(-0.5, (token, 0), (-0.5, -1.5)) if wants else None)
        return StepOutcome(tokens, failed, logprobs)

    def zero_blocks(self, blocks: Sequence[int]) -> None:
        self._kv[list(blocks)] = EMPTY

    def read_blocks(self, blocks: Sequence[int]) -> NDArray[np.uint8]:
        return self._kv[list(blocks)].reshape(-1).view(np.uint8)

    def write_blocks(self, blocks: Sequence[int], data: NDArray[np.uint8]) -> None:
        assert (self._kv[list(blocks)] == EMPTY).all(), "written over something"
        self._kv[list(blocks)] = np.frombuffer(data.tobytes(), np.int64).reshape(len(blocks), -1)

    def _write_and_read(self, step: Step) -> list[list[int]]:
        assert sum(step.query_lens) == len(step.token_ids)
        contexts, at = [], 0
        for row, (count, after) in enumerate(zip(step.query_lens.tolist(), step.context_lens.tolist(), strict=True)):
            before = after - count
            table = step.block_tables[step.block_table_offsets[row] : step.block_table_offsets[row + 1]].tolist()
            for position, token in enumerate(step.token_ids[at : at + count].tolist(), before):
                slot = table[position // self._block_size], position % self._block_size
                assert self._kv[slot] == EMPTY, f"row {row} writes position {position} over something"
                self._kv[slot] = token
            at += count
            context = [int(self._kv[table[p // self._block_size], p % self._block_size]) for p in range(after)]
            assert EMPTY not in context, f"row {row} reads a position that nobody wrote"
            contexts.append(context)
        return contexts


def _adapters(step: Step) -> list[int]:
    if step.adapters is None:
        return [NO_ADAPTER] * len(step.query_lens)
    found: list[int] = step.adapters.tolist()
    assert len(found) == len(step.query_lens)
    assert NO_ADAPTER < max(found) < len(ADAPTERS), "given where a row has one, and only then"
    return found


def allowed_token(context: Sequence[int], sampling: RowSampling, mask: Mask | None, adapter: int) -> int:
    """What it wants, or any id that its grammar allows: a model that cares for no grammar."""
    wanted = next_token(context, sampling, adapter)
    if mask is None:
        return wanted
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    allowed = [int(token) for token in np.flatnonzero(bits)]
    ids = [token for token in allowed if token not in sampling.barred] or allowed
    return wanted if wanted in ids else ids[wanted % len(ids)]


def next_token(context: Sequence[int], sampling: RowSampling, adapter: int = NO_ADAPTER) -> int:
    """What the scripted model answers to `context`, prompt and completion so far."""
    command, done = context[0], len(context) - sampling.prompt_len
    if command == ECHO:
        answer = [*context[1 : sampling.prompt_len], EOS]
        return answer[min(done, len(answer) - 1)] if answer[min(done, len(answer) - 1)] not in sampling.barred else 5
    if command in {NEVER_ENDS, SLOW}:
        return 5
    seed = (sampling.rules.seed, sampling.choice, len(context)) if sampling.rules.temperature > 0 else ()
    digest = zlib.crc32(repr((list(context), seed, adapter)).encode())
    return 10 + digest % 800


class SpelledTokens:
    """Token n spells what `spelling` says, else "<n>"; ids below 10 are special and spell nothing."""

    def __init__(self, spelling: Mapping[int, bytes] | None = None) -> None:
        self._spelling = spelling or {}

    def __getitem__(self, token: int) -> bytes:
        return self._spelling.get(token, b"" if token < 10 else b"<%d>" % token)


def serves(block_count: int = 128, max_choices: int = 8, *, has_token_bytes: bool = True) -> Serves:
    return Serves(
        IDENTITY, VOCAB, CONTEXT, block_count, BLOCK, max_choices, frozenset({EOS}), has_token_bytes, ADAPTERS
    )


def attached(
    block_count: int = 128,
    *,
    engine: ScriptedEngine | None = None,
    spelling: Mapping[int, bytes] | None = None,
    step_token_budget: int = 16,
    max_running: int = 8,
    max_queued: int = 4,
) -> Attached:
    return Attached(
        serves=serves(block_count, max_running),
        forwarding=engine or ScriptedEngine(block_count),
        token_bytes=SpelledTokens(spelling),
        block_count=block_count,
        limits=Limits(BLOCK, step_token_budget, max_running, max_queued),
    )
