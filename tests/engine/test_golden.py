"""Bones against what `transformers` computed on the same weights (golden files; see tests/data/make_golden.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from doubles import golden
from doubles.bones_rows import Rows, bones_model, relative_difference
from doubles.tiny_model import tiny_weights

from tie.bones import Model
from tie.catalog.bundle import open_bundle
from tie.catalog.signature import default_trusted_keys_path, load_trusted_keys

SMOLLM2_F32 = Path(__file__).parents[2] / "build" / "bundles" / "smollm2-f32"
RELATIVE = 1e-3
TINY_RELATIVE = 1e-4
"""Measured: 2.5e-6 in the worst case, and with every instruction set."""
TIE_GAP = 1e-2
"""Below this gap between the reference's two best logits, rounding may decide."""


@pytest.mark.parametrize("case", golden.TINY_CASES)
def test_tiny_models_agree_with_the_reference(case: str) -> None:
    description = golden.TINY_CASES[case]
    model = bones_model(description, tiny_weights(description, golden.TINY_SEED))
    prompts = golden.tiny_prompts(case)
    assert len(prompts) == 2
    for prompt in prompts:
        _, logits = Rows(model, 1, len(prompt.tokens)).step({0: prompt.tokens}, all_logits=True)
        assert logits is not None
        found = logits[list(prompt.positions)]
        assert relative_difference(found, prompt.logits, float(np.abs(prompt.logits).max())) <= TINY_RELATIVE


@pytest.mark.parametrize("case", golden.TINY_CASES)
def test_tokens_one_by_one_give_what_the_prompt_gives_at_once(case: str) -> None:
    """A window, a layer without positions and a norm of heads must count positions in the same way in both."""
    description = golden.TINY_CASES[case]
    model = bones_model(description, tiny_weights(description, golden.TINY_SEED))
    tokens = golden.tiny_prompts(case)[1].tokens
    _, whole = Rows(model, 1, len(tokens)).step({0: tokens}, all_logits=True)
    assert whole is not None
    rows = Rows(model, 1, len(tokens))
    for token, expected in zip(tokens, whole, strict=True):
        _, single = rows.step({0: [token]})
        assert single is not None
        assert np.array_equal(single[0], expected)


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
