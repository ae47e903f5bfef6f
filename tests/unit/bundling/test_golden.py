"""The plain model of the tests against the reference: what the other tests compare with is itself compared."""

import numpy as np
import pytest
from doubles.golden import TINY_CASES, TINY_SEED, tiny_prompts
from doubles.reference_model import logits
from doubles.tiny_model import tiny_weights


@pytest.mark.parametrize("case", TINY_CASES)
def test_tiny_models_give_the_reference_s_logits(case: str) -> None:
    model = TINY_CASES[case]
    weights = tiny_weights(model, TINY_SEED)
    prompts = tiny_prompts(case)
    assert len(prompts) == 2
    for prompt in prompts:
        ours = logits(model, weights, prompt.tokens)[list(prompt.positions)]
        assert np.abs(ours - prompt.logits).max() <= 1e-5 * np.abs(prompt.logits).max()
