"""Bones against what `transformers` computed on the same weights (golden files; see tests/data/make_golden.py)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from doubles import golden
from doubles.tiny_model import tiny_weights
from safetensors.numpy import save

from tie.bones import Batch, Engine, Model, Sampling
from tie.catalog.bundle import open_bundle
from tie.catalog.signature import default_trusted_keys_path, load_trusted_keys

SMOLLM2_F32 = Path(__file__).parents[2] / "build" / "bundles" / "smollm2-f32"
BLOCK = 16
RELATIVE = 1e-3
TIE_GAP = 1e-2
"""Below this gap between the reference's two best logits, rounding may decide."""
GREEDY = Sampling(
    temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0,
    frequency_penalty=0.0, seed=0, choice_index=0, logit_bias=[], history=np.zeros(0, np.int32), prompt_len=0,
)  # fmt: skip
Floats = npt.NDArray[np.float32]


class Rows:
    """Sequences side by side, each with blocks of its own."""

    def __init__(self, model: Model, sequences: int, length: int) -> None:
        self._per = -(-length // BLOCK)
        self._engine = Engine(
            model,
            block_count=sequences * self._per,
            block_size_tokens=BLOCK,
            kv_dtype="f32",
            threads=os.cpu_count() or 1,
        )
        self._contexts = [0] * sequences

    def step(self, tokens: dict[int, Sequence[int]], *, all_logits: bool = False) -> tuple[list[int], Floats | None]:
        rows = list(tokens)
        for row in rows:
            self._contexts[row] += len(tokens[row])
        tables = [np.arange(row * self._per, row * self._per + -(-self._contexts[row] // BLOCK)) for row in rows]
        outcome = self._engine.forward(
            Batch(
                token_ids=np.concatenate([np.array(tokens[row], np.int32) for row in rows]),
                query_lens=np.array([len(tokens[row]) for row in rows], np.int32),
                context_lens=np.array([self._contexts[row] for row in rows], np.int32),
                block_tables=np.concatenate(tables).astype(np.int32),
                block_table_offsets=np.cumsum([0, *map(len, tables)]).astype(np.int32),
                sample=np.ones(len(rows), np.bool_),
                sampling=[GREEDY] * len(rows),
                want_logits=not all_logits,
                want_all_logits=all_logits,
            )
        )
        assert not outcome.errors
        return outcome.tokens.tolist(), outcome.logits


def relative_difference(found: Floats, expected: Floats, largest: float) -> float:
    return float(np.abs(found - expected).max()) / largest


@pytest.mark.parametrize("case", golden.TINY_CASES)
def test_tiny_models_agree_with_the_reference(case: str) -> None:
    description = golden.TINY_CASES[case]
    with tempfile.TemporaryFile() as file:
        file.write(save(tiny_weights(description, golden.TINY_SEED)))
        file.flush()
        model = Model(description.to_json(), [file.fileno()])
    prompts = golden.tiny_prompts(case)
    assert prompts
    for prompt in prompts:
        rows = Rows(model, 1, len(prompt.tokens))
        _, logits = rows.step({0: prompt.tokens}, all_logits=True)
        assert logits is not None
        found = logits[list(prompt.positions)]
        assert relative_difference(found, prompt.logits, float(np.abs(prompt.logits).max())) <= RELATIVE


@pytest.fixture(scope="module")
def smollm2() -> Rows:
    if not SMOLLM2_F32.is_dir():
        pytest.fail("build/bundles/smollm2-f32 is missing: run .ci/setup.sh --tests")
    chats = golden.smollm2_chats()
    longest = max(len(chat.prompt) + len(chat.output) for chat in chats)
    with open_bundle(SMOLLM2_F32, trusted_keys=load_trusted_keys(default_trusted_keys_path())) as bundle:
        model = Model(bundle.description.model.to_json(), list(bundle.weight_fds()))
    return Rows(model, len(chats), longest)


@pytest.mark.timeout(300)
def test_smollm2_in_f32_says_what_the_reference_says(smollm2: Rows) -> None:
    chats = golden.smollm2_chats()
    assert len(chats) >= 20
    assert all(len(chat.output) == 48 for chat in chats)
    samples = {sample.chat: sample for sample in golden.smollm2_logits()}
    tokens, outputs = {}, {}
    for index, chat in enumerate(chats):
        (first,), logits = smollm2.step({index: chat.prompt})
        tokens[index], outputs[index] = first, [first]
        assert logits is not None
        if (sample := samples.get(index)) is not None:
            assert relative_difference(logits[0][sample.ids], sample.values, sample.max_magnitude) <= RELATIVE
    for _ in range(47):
        chosen, _ = smollm2.step({index: [token] for index, token in tokens.items()})
        for index, token in zip(tokens, chosen, strict=True):
            tokens[index] = token
            outputs[index].append(token)
    for index, chat in enumerate(chats):
        compared = next((place for place, gap in enumerate(chat.gaps) if gap <= TIE_GAP), len(chat.output))
        assert outputs[index][:compared] == chat.output[:compared], f"chat {index}"
