"""Models stored in fewer bits, against the plain model on the very numbers that are stored.

What is left is what a kernel makes of a matrix's input. With that imitated, nothing else may be left but inputs that
round the other way because a sum differs in its last bit; without, it is what the form costs, and within stated bounds.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from doubles import golden
from doubles.bones_rows import Floats, Rows, as_stored, bones_model, rounded_input
from doubles.reference_model import logits as plain_logits
from doubles.tiny_model import tiny_weights

from tie.catalog.layout import Form

EXACT = 1e-5


class Bounds(NamedTuple):
    """Each difference is relative to the largest logit, save `mean_cost`, which compares root mean squares.

    Measured over all cases and instruction sets: bf16 5e-3, 1.9e-2, 1.2e-2; bytes and nibbles 1.7e-2, 6e-2, 4e-2.
    """

    ties: float  # where inputs are rounded alike
    cost: float
    mean_cost: float


BOUNDS: dict[Form, Bounds] = {
    "bf16": Bounds(1e-2, 2.5e-2, 1.5e-2),
    "int8": Bounds(3e-2, 8e-2, 5e-2),
    "int4": Bounds(3e-2, 8e-2, 5e-2),
    "int4_min": Bounds(3e-2, 8e-2, 5e-2),
}


@pytest.mark.parametrize("form", BOUNDS)
@pytest.mark.parametrize("case", golden.TINY_CASES)
def test_what_is_stored_is_what_is_computed_with(case: str, form: Form) -> None:
    description = golden.TINY_CASES[case]
    weights = tiny_weights(description, golden.TINY_SEED)
    model, stored = bones_model(description, weights, form), as_stored(weights, form)
    for prompt in golden.tiny_prompts(case):
        _, found = Rows(model, 1, len(prompt.tokens)).step({0: prompt.tokens}, all_logits=True)
        assert found is not None
        alike = differences(found, plain_logits(description, stored, prompt.tokens, rounded_input(form)))
        assert alike.min() <= EXACT, "some position is free of ties, and there all is exact"
        assert alike.max() <= BOUNDS[form].ties
        expected = plain_logits(description, stored, prompt.tokens)
        assert differences(found, expected).max() <= BOUNDS[form].cost
        assert ((found - expected) ** 2).mean() <= BOUNDS[form].mean_cost ** 2 * (expected**2).mean()


def differences(found: Floats, expected: Floats) -> Floats:
    """The largest of each position."""
    result: Floats = np.abs(found - expected).max(axis=1) / np.abs(expected).max()
    return result
