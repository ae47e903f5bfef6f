"""LoRA in Bones: an adapter is the model that its merged weights make, for its own rows and for no other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from doubles import golden
from doubles.bones_rows import as_stored, relative_difference
from doubles.reference_model import logits as plain_logits
from doubles.tiny_adapter import ALL, Pair, Pairs, merged, planned_pairs, rounded, tiny_pairs
from doubles.tiny_model import Weights, planned, tiny_model, tiny_weights
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.bones.sequences import Chunk, Driver, driver, tokens_of
from unit.bones.test_logits import SETS, instruction_set

from tie.bones import BatchError, Model, WeightsError
from tie.bundling.weights_file import PlannedTensor, write_weights
from tie.catalog.description import ModelDescription
from tie.catalog.layout import Form

Floats = npt.NDArray[np.float32]
TINY = tiny_model(vocab_size=160)
WEIGHTS = tiny_weights(TINY, 5)
A, B = tiny_pairs(TINY, 1, rank=8), tiny_pairs(TINY, 2, rank=40, matrices=["attn.q", "attn.v", "mlp.down"])
TOKENS = tokens_of(23, vocab=160)
RELATIVE = 1e-4
ROUNDED: tuple[Form, ...] = ("bf16", "int8", "int4", "int4_min")
SHARE = 1.5
"""Of the error that rounded activations cost the model without adapter: what it may be with one."""
NONE = -1


def bones_model(
    description: ModelDescription,
    weights: Weights,
    adapters: Mapping[str, Pairs],
    form: Form = "f32",
    adapter_form: Form = "f32",
) -> Model:
    images = {name: planned_pairs(pairs, adapter_form) for name, pairs in adapters.items()}
    return model_of(description, planned(weights, form), list(images.items()))


def model_of(
    description: ModelDescription, weights: list[PlannedTensor], adapters: Sequence[tuple[str, list[PlannedTensor]]]
) -> Model:
    with TemporaryDirectory() as directory, ExitStack() as stack:
        fds = []
        for index, tensors in enumerate([weights, *(tensors for _, tensors in adapters)]):
            path = Path(directory) / f"{index}.safetensors"
            write_weights(path, tensors, lambda _: None)
            fds.append(stack.enter_context(path.open("rb")).fileno())
        names = [name for name, _ in adapters]
        return Model(description.to_json(), fds[:1], list(zip(names, fds[1:], strict=True)))


class Part(NamedTuple):
    """What one sequence feeds in a step, and the adapter that it goes through."""

    sequence: int
    tokens: Sequence[int]
    adapter: int = NONE


def step(at: Driver, *parts: Part) -> list[Floats]:
    """Logits of every token of each part."""
    chunks = [Chunk(part.sequence, part.tokens, None) for part in parts]
    adapters = np.array([part.adapter for part in parts], np.int32)
    found = at.step(chunks, want_all_logits=True, adapters=adapters).logits
    assert found is not None
    return np.split(found, np.cumsum([len(part.tokens) for part in parts])[:-1])


def alone(model: Model, adapter: int, tokens: Sequence[int] = TOKENS, **options: Any) -> Floats:
    return step(driver(model, **options), Part(0, tokens, adapter))[0]


def difference(found: Floats, expected: Floats) -> float:
    return relative_difference(found, expected, float(np.abs(expected).max()))


def spread(found: Floats, expected: Floats) -> float:
    """Root mean square of the error, relative to that of what is expected."""
    return float(np.sqrt(np.mean((found - expected) ** 2) / np.mean(expected**2)))


@cache
def two(form: Form = "f32") -> Model:
    return bones_model(TINY, WEIGHTS, {"a": A, "b": B}, form)


@pytest.mark.parametrize("adapter", [2, -2, 2**31 - 1, -(2**31)])
def test_an_adapter_that_is_not_there_is_refused_by_its_row(adapter: int) -> None:
    with pytest.raises(BatchError, match="row 1"):
        step(driver(two()), Part(0, TOKENS, 1), Part(1, TOKENS, adapter))


def test_a_model_without_adapters_has_none() -> None:
    with pytest.raises(BatchError, match="row 0"):
        alone(bones_model(TINY, WEIGHTS, {}), 0)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_an_adapter_for_each_row_or_for_none(count: int) -> None:
    chunks = [Chunk(0, TOKENS, None), Chunk(1, TOKENS, None)]
    with pytest.raises(BatchError, match="adapters"):
        driver(two()).step(chunks, want_all_logits=True, adapters=np.zeros(count, np.int32))


def test_a_refused_step_changes_nothing() -> None:
    at = driver(two())
    before, after = TOKENS[:9], TOKENS[9:]
    step(at, Part(0, before, 0))
    with pytest.raises(BatchError):
        step(at, Part(1, TOKENS, 7))
    assert np.array_equal(step(at, Part(0, after, 0))[0], alone(two(), 0)[9:])


Q = {"layers.0.attn.q": A["layers.0.attn.q"]}
BAD_IMAGES: dict[str, list[PlannedTensor]] = {
    "half a pair": planned_pairs(Q)[:1],
    "the other half": planned_pairs(Q)[1:],
    "another K": planned_pairs({"layers.0.attn.q": Pair(Q["layers.0.attn.q"].a[:, :32], Q["layers.0.attn.q"].b)}),
    "other rows": planned_pairs({"layers.0.attn.q": Pair(Q["layers.0.attn.q"].a, Q["layers.0.attn.q"].b[:32])}),
    "a layer too many": planned_pairs({"layers.2.attn.q": Q["layers.0.attn.q"]}),
    "the embedding": planned_pairs({"embed": Q["layers.0.attn.q"]}),
    "quantised": planned_pairs(Q, "int8"),
}


@pytest.mark.parametrize("what", BAD_IMAGES)
def test_an_image_that_does_not_fit_the_model_is_refused_by_name(what: str) -> None:
    with pytest.raises(WeightsError, match="bad-one"):
        model_of(TINY, planned(WEIGHTS, "f32"), [("good", planned_pairs(A)), ("bad-one", BAD_IMAGES[what])])


@pytest.mark.parametrize("names", [["a", "a"], ["A"], [""], ["a/b"], [f"a{n}" for n in range(65)]])
def test_names_that_no_bundle_has_are_refused(names: list[str]) -> None:
    with pytest.raises(WeightsError):
        model_of(TINY, planned(WEIGHTS, "f32"), [(name, planned_pairs(Q)) for name in names])


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("rank", [1, 8, 32, 33, 96, 512])
def test_an_adapter_is_its_merged_weights(rank: int, isa: str) -> None:
    pairs = tiny_pairs(TINY, rank, rank=rank)
    model, whole = bones_model(TINY, WEIGHTS, {"a": pairs}), bones_model(TINY, merged(WEIGHTS, pairs), {})
    found, expected = (alone(each, at, isa=instruction_set(isa)) for each, at in ((model, 0), (whole, NONE)))
    assert difference(found, expected) <= RELATIVE
    assert difference(found, alone(model, NONE)) > 0.05, "an adapter that changes nothing proves nothing"


@pytest.mark.parametrize("matrix", ALL)
def test_each_matrix_can_be_bent_by_itself(matrix: str) -> None:
    pairs = tiny_pairs(TINY, 6, rank=16, matrices=[matrix], strength=2.0)
    model, whole = bones_model(TINY, WEIGHTS, {"a": pairs}), bones_model(TINY, merged(WEIGHTS, pairs), {})
    found = alone(model, 0)
    assert difference(found, alone(whole, NONE)) <= RELATIVE
    assert difference(found, alone(model, NONE)) > 1e-2


@pytest.mark.parametrize("case", golden.TINY_CASES)
def test_every_kind_of_model_takes_adapters(case: str) -> None:
    description = golden.TINY_CASES[case]
    weights, pairs = tiny_weights(description, 4), tiny_pairs(description, 4, rank=24)
    tokens = tokens_of(40, vocab=description.vocab_size)
    found = alone(bones_model(description, weights, {"a": pairs}), 0, tokens)
    assert difference(found, alone(bones_model(description, merged(weights, pairs), {}), NONE, tokens)) <= RELATIVE


@pytest.mark.parametrize("form", ROUNDED)
@pytest.mark.parametrize("adapter_form", ["f32", "bf16"])
def test_over_weights_of_fewer_bits_an_adapter_keeps_its_own(form: Form, adapter_form: Form) -> None:
    pairs, weights = rounded(A), as_stored(WEIGHTS, form)
    model = bones_model(TINY, WEIGHTS, {"a": pairs}, form, adapter_form)
    error = spread(alone(model, 0), plain_logits(TINY, merged(weights, pairs), TOKENS))
    assert error <= SHARE * spread(alone(model, NONE), plain_logits(TINY, weights, TOKENS))


def test_adapters_in_bf16() -> None:
    pairs = rounded(A)
    model = bones_model(TINY, WEIGHTS, {"a": pairs}, "f32", "bf16")
    assert spread(alone(model, 0), plain_logits(TINY, merged(WEIGHTS, pairs), TOKENS)) <= 1e-2


@pytest.mark.parametrize("form", ["f32", *ROUNDED])
def test_rows_without_adapter_are_the_model_as_it_is(form: Form) -> None:
    plain = driver(bones_model(TINY, WEIGHTS, {}, form)).logits([Chunk(0, TOKENS, None)])
    assert np.array_equal(alone(two(form), NONE), plain)
    assert np.array_equal(driver(two(form)).logits([Chunk(0, TOKENS, None)]), plain)


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("form", ["f32", *ROUNDED])
@pytest.mark.parametrize("threads", [1, 2])
def test_none_and_two_adapters_in_one_batch_are_each_what_they_are_alone(form: Form, isa: str, threads: int) -> None:
    model, options = two(form), {"isa": instruction_set(isa), "threads": threads}
    at = driver(model, seed=3, **options)
    found: dict[int, list[Floats]] = {NONE: [], 0: [], 1: []}
    for begin, end in ((0, 14), (14, 15), (15, 22), (22, 23)):
        parts = [Part(adapter + 1, TOKENS[begin:end], adapter) for adapter in (1, NONE, 0)]
        for part, logits in zip(parts, step(at, *parts), strict=True):
            found[part.adapter].append(logits)
    for adapter, pieces in found.items():
        assert np.array_equal(np.concatenate(pieces), alone(model, adapter, isa=instruction_set(isa)))
    assert difference(found[0][0], found[1][0]) > 0.05


@given(
    adapters=st.lists(st.sampled_from([NONE, 0, 1]), min_size=1, max_size=9),
    form=st.sampled_from(["f32", "bf16", "int4"]),
    threads=st.integers(1, 2),
)
@settings(max_examples=25, deadline=None)
def test_any_company_leaves_a_row_bit_for_bit(adapters: list[int], form: Form, threads: int) -> None:
    model = two(form)
    parts = [Part(row, tokens_of(1 + 3 * row, row, 160), adapter) for row, adapter in enumerate(adapters)]
    together = step(driver(model, seed=1, block_count=256, threads=threads), *parts)
    for part, found in zip(parts, together, strict=True):
        assert np.array_equal(found, alone(model, part.adapter, part.tokens))


@pytest.mark.parametrize("ranks", [{"tensor_parallel": 2}, {"pipeline_parallel": 2}])
def test_ranks_split_an_adapter_as_they_split_its_matrix(ranks: dict[str, int]) -> None:
    parts = [Part(adapter + 1, TOKENS, adapter) for adapter in (0, NONE, 1)]
    together = step(driver(two(), **ranks), *parts)
    for part, found in zip(parts, together, strict=True):
        assert difference(found, alone(two(), part.adapter)) <= RELATIVE
        assert np.array_equal(found, alone(two(), part.adapter, **ranks))


def test_adapters_keep_their_order_and_hold_their_images_until_the_model_goes() -> None:
    expected = alone(two(), 0)
    before = set(os.listdir("/proc/self/fd"))
    model = bones_model(TINY, WEIGHTS, {"b": B, "a": A})
    assert model.adapter_names == ["b", "a"]
    assert np.array_equal(alone(model, 1), expected)
    del model
    assert set(os.listdir("/proc/self/fd")) == before
