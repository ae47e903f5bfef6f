"""Sampling through the engine: refusals, faults of one row, the shape of distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from unit.bones import reference
from unit.bones.images import build
from unit.bones.sequences import Chunk, driver, int32, tokens_of

from tie.bones import BatchError, Model, Sampling

NAN, INF = math.nan, math.inf


@pytest.fixture(scope="module")
def model() -> Model:
    return build()[0]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-1.0, 100.5, NAN, INF]),
        ("top_p", [0.0, -0.5, 1.5, NAN]),
        ("top_k", [-1]),
        ("min_p", [-0.1, 1.1, NAN]),
        ("repetition_penalty", [0.0, -1.0, 101.0, NAN, INF]),
        ("presence_penalty", [-101.0, 101.0, NAN]),
        ("frequency_penalty", [-101.0, 101.0, INF]),
        ("logit_bias", [[(1, 101.0)], [(1, NAN)], [(-1, 1.0)]]),
        ("prompt_len", [-1, 1]),
        ("logprobs", [-1, 21]),
        ("history", [int32([-1]), np.zeros(2), np.zeros((1, 1), np.int32), [1, 2], np.zeros(8, np.int32)[::2]]),
    ],
)
def test_parameters_out_of_range_are_refused_by_name(field: str, values: list[Any]) -> None:
    for value in values:
        arguments: dict[str, Any] = {"temperature": 1.0} | {field: value}
        with pytest.raises(BatchError, match=rf"sampling\.{field} must"):
            Sampling(**arguments)


def test_ids_outside_the_vocabulary_are_refused_when_the_model_is_known(model: Model) -> None:
    for sampling in (Sampling(0.0, logit_bias=[(90, 1.0)]), Sampling(0.0, history=int32([1, 90]))):
        with pytest.raises(BatchError, match=r"row 1: sampling.* must be ids below 90"):
            driver(model).step([Chunk(0, [1]), Chunk(1, [2], sampling)])


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("bad", [0, 2])
def test_one_bad_row_is_its_own_fault(model: Model, poison: float, bad: int) -> None:
    chunks = [Chunk(i, tokens_of(4 + i, seed=i), Sampling(1.0, seed=i, logprobs=3)) for i in range(3)]
    clean = driver(model).step(chunks, want_logits=True)
    found = driver(model, fault_injection=True).step(chunks, want_logits=True, poison=(bad, poison))
    # -inf in one place is a token that cannot be drawn; NaN and +inf are faults.
    assert found.errors == ([] if poison == -INF else [(bad, "logits not finite")])
    for row in range(3):
        if row != bad:
            assert found.tokens[row] == clean.tokens[row]
            assert found.logprobs[row] == clean.logprobs[row]
            assert np.array_equal(found.logits[row], clean.logits[row])  # type: ignore[index]
    if poison != -INF:
        assert found.tokens[bad] == -1
        assert found.logprobs[bad] is None


def test_an_empty_mask_is_that_rows_fault(model: Model) -> None:
    mask = np.full((3, 3), 0xFFFFFFFF, np.uint32)
    mask[1] = [0, 0, 0xFFFFFFFF << 26 & 0xFFFFFFFF]  # bits beyond the vocabulary of 90 do not count
    chunks = [Chunk(i, [i + 1]) for i in range(3)]
    found = driver(model).step(chunks, allowed_mask=mask)
    assert found.errors == [(1, "no token allowed")]
    assert found.tokens[1] == -1
    assert (found.tokens[[0, 2]] >= 0).all()


def test_a_half_of_a_step_out_of_its_place_is_refused(model: Model) -> None:
    run = driver(model)
    masked = run.batch([Chunk(0, [1])], allowed_mask=np.zeros((1, 3), np.uint32))
    with pytest.raises(BatchError, match="sample follows a step that was advanced, once"):
        run.engine.sample()
    with pytest.raises(BatchError, match="allowed_mask belongs to the call that samples"):
        run.engine.advance(masked)
    run.engine.advance(run.batch([Chunk(1, [1])]))
    for wrong in (np.zeros((2, 3), np.uint32), np.zeros((1, 3), np.int32), np.zeros(3, np.uint32)):
        with pytest.raises(BatchError, match="allowed_mask"):
            run.engine.sample(wrong)  # type: ignore[arg-type]
        run.engine.advance(run.batch([Chunk(2, [1])]))


def test_a_mask_may_come_when_the_rows_have_been_advanced(model: Model) -> None:
    mask = np.zeros((2, 3), np.uint32)
    mask[:, 1] = 0b1010
    chunks = [Chunk(0, [3, 4]), Chunk(1, [5])]
    whole = driver(model).step(chunks, allowed_mask=mask)
    run = driver(model)
    run.engine.advance(run.batch(chunks))
    assert run.engine.sample(mask).tokens.tolist() == whole.tokens.tolist()


def test_a_masked_token_is_never_drawn(model: Model) -> None:
    mask = np.zeros((1, 3), np.uint32)
    mask[0, 1] = 0b1010
    drawn = set()
    for seed in range(40):
        wild = Sampling(100.0, seed=seed, logit_bias=[(7, 100.0)])
        drawn.add(int(driver(model).step([Chunk(0, [3], wild)], allowed_mask=mask).tokens[0]))
    assert drawn == {33, 35}


@pytest.mark.parametrize("temperature", [0.0, 1e-45, 1e-7, 1e-4])
def test_tiny_temperatures_take_the_best_token(model: Model, temperature: float) -> None:
    chunk = tokens_of(5)
    found = driver(model).step([Chunk(0, chunk, Sampling(temperature, seed=9, top_p=1e-9))], want_logits=True)
    assert found.logits is not None
    assert found.errors == []
    assert found.tokens[0] == found.logits[0].argmax()


def test_draws_follow_the_distribution() -> None:
    model, description, weights = build(vocab_size=6, seed=2)
    wanted = reference.logits(description, weights, [1, 2])[-1] / 1.7
    shares = np.exp(wanted - wanted.max())
    shares /= shares.sum()
    tokens: list[int] = []
    for choice in range(5):
        chunks = [Chunk(row, [1, 2], Sampling(1.7, seed=row, choice_index=choice)) for row in range(600)]
        tokens += driver(model, block_count=600).step(chunks).tokens.tolist()
    counts = np.bincount(tokens, minlength=6)
    # Chi-squared with 5 degrees of freedom exceeds 20.5 once in a thousand; the seeds are fixed.
    assert ((counts - 3000 * shares) ** 2 / (3000 * shares)).sum() < 20.5


def test_logprobs_are_the_models_own(model: Model) -> None:
    sampling = Sampling(1.0, seed=3, logit_bias=[(40, 100.0)], logprobs=4)
    found = driver(model).step(
        [Chunk(0, [5, 6], sampling), Chunk(1, [5, 6], Sampling(0.0, logprobs=0))], want_logits=True
    )
    assert found.logits is not None
    logits = found.logits[0].astype(np.float64)
    own = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
    first, second = found.logprobs
    assert first is not None
    assert second is not None
    assert [token for token, _ in first] == [40, *np.argsort(-own, kind="stable")[:4]]
    assert np.allclose([value for _, value in first], own[[token for token, _ in first]], atol=1e-5)
    assert [token for token, _ in second] == [found.tokens[1]]


def test_penalties_push_away_from_the_history(model: Model) -> None:
    best = int(driver(model).step([Chunk(0, [8])]).tokens[0])
    history = int32([best, best])
    for change in ({"presence_penalty": 50.0}, {"frequency_penalty": 25.0}):
        pushed = Sampling(0.0, history=history, prompt_len=1, **change)
        assert driver(model).step([Chunk(0, [8], pushed)]).tokens[0] != best
        kept = Sampling(0.0, history=history, prompt_len=2, **change)
        assert driver(model).step([Chunk(0, [8], kept)]).tokens[0] == best
    repeated = Sampling(0.0, history=history, prompt_len=2, repetition_penalty=100.0)
    assert driver(model).step([Chunk(0, [8], repeated)]).tokens[0] != best


def test_representations_show_no_values() -> None:
    assert repr(Sampling(0.5, seed=12345, history=int32([77]))) == "<Sampling>"
