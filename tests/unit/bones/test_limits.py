"""Shapes at the edges: nothing that is described may be computed wrongly, whatever it leaves over."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.bones import reference
from unit.bones.arithmetic import Arithmetic
from unit.bones.images import FORMS, build, model_of
from unit.bones.sequences import Chunk, driver, int32, tokens_of
from unit.bones.test_logits import FLIPPED, KV, SETS, instruction_set

from tie.bones import Batch, BatchError


@st.composite
def odd_models(draw: Callable[[Any], Any], forms: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    """A form and sizes that no vector, panel or word divides, as far as the form allows."""
    form = draw(st.sampled_from(forms))
    is_quantised = form.startswith("int")
    widths = st.sampled_from([32, 64, 96]) if is_quantised else st.integers(1, 70)
    head_dim, kv_heads, group = draw(st.integers(2, 37)), draw(st.integers(1, 3)), draw(st.integers(1, 9))
    if is_quantised:
        group = 32 // math.gcd(head_dim * kv_heads, 32)
    return form, {
        "hidden_size": draw(widths),
        "intermediate_size": draw(widths),
        "layer_count": draw(st.integers(1, 2)),
        "query_heads": group * kv_heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": draw(st.integers(1, 40)),
        "context_length": draw(st.integers(1, 40)),
        "tied_embeddings": draw(st.booleans()),
        "norm_eps": 0.1,  # a norm of very few elements would magnify what cancelled in their sum
        "rope": {"rotary_dim": 2 * draw(st.integers(1, head_dim // 2))},
    }


def filled(description: dict[str, Any], block_size: int) -> tuple[list[int], dict[str, int]]:
    """As many tokens as the context takes, and as many blocks as hold them, none left."""
    count = description["context_length"]
    blocks = {"block_count": -(-count // block_size), "block_size_tokens": block_size}
    return tokens_of(count, vocab=description["vocab_size"]), blocks


@pytest.mark.parametrize("isa", SETS)
@given(model=odd_models(("f32",)), block_size=st.integers(1, 50), threads=st.integers(1, 3))
@settings(max_examples=40)
def test_any_shape_agrees_with_the_reference(
    isa: str, model: tuple[str, dict[str, Any]], block_size: int, threads: int
) -> None:
    built, description, weights = build(model[0], **model[1])
    tokens, blocks = filled(description, block_size)
    found = driver(built, isa=instruction_set(isa), threads=threads, **blocks).follow(tokens)
    wanted = reference.logits(description, weights, tokens)
    assert np.abs(found - wanted).max() < 1e-4 * np.abs(wanted).max()


@pytest.mark.parametrize("isa", SETS)
@given(
    model=odd_models(FORMS),
    kv=st.sampled_from(KV),
    block_size=st.integers(1, 50),
    threads=st.integers(1, 3),
    splits=st.sets(st.integers(1, 39)),
)
@settings(max_examples=60)
def test_any_shape_in_any_form_gives_the_same_in_any_chunks(
    isa: str, model: tuple[str, dict[str, Any]], kv: str, block_size: int, threads: int, splits: set[int]
) -> None:
    built, description, weights = build(model[0], **model[1])
    tokens, blocks = filled(description, block_size)
    options: dict[str, Any] = {"isa": instruction_set(isa), "kv_dtype": kv, **blocks}
    found = driver(built, threads=threads, **options).follow(tokens, [at for at in sorted(splits) if at < len(tokens)])
    assert np.array_equal(found, driver(built, **options).follow(tokens))
    # The first token has nothing to attend to but itself: what reference and engine round apart has not yet spread.
    wanted = reference.logits(description, weights, tokens[:1], Arithmetic(model[0], kv, block_size))
    assert np.abs(found[:1] - wanted).max() < FLIPPED * np.abs(wanted).max()


def test_a_context_is_used_to_its_end_and_no_further() -> None:
    model, _, _ = build(context_length=48)
    tokens = tokens_of(48)
    run = driver(model, block_count=13)
    found = run.follow(tokens, [47])
    assert np.array_equal(found, driver(model).follow(tokens))
    with pytest.raises(BatchError, match=r"row 0: context_lens must be 1 \(its query_lens\) to 48"):
        run.follow([1])


def test_the_block_with_the_largest_index_is_a_block_like_any_other() -> None:
    model, _, _ = build()
    tokens, run = tokens_of(11), driver(model, block_count=1000)
    run.free = [0, 500, 999]  # taken from its end
    assert np.array_equal(run.follow(tokens, [5]), driver(model).follow(tokens))
    assert run.tables[0] == [999, 500, 0]
    for block in (1000, 2**31 - 1, -(2**31)):
        run.tables[0] = [999, 500, block]
        with pytest.raises(BatchError, match=f"block_tables entry 2 is {block}, must be 0 to 999"):
            run.engine.forward(run.batch([Chunk(0, [])], query_lens=int32([1]), token_ids=int32([1])))


def test_spare_entries_of_a_block_table_are_checked_and_left_alone() -> None:
    model, _, _ = build()
    run, tokens = driver(model), tokens_of(6)
    run.tables[0] = [5, 6, 7, 5, 63]
    before = run.engine.read_blocks([7, 63])
    assert np.array_equal(run.follow(tokens), driver(model).follow(tokens))
    assert np.array_equal(run.engine.read_blocks([7, 63]), before)
    run.tables[0][-1] = 64
    with pytest.raises(BatchError, match="block_tables entry 4 is 64, must be 0 to 63"):
        run.follow([1])


def test_an_empty_batch_is_refused() -> None:
    nothing: Any = int32([])
    empty = Batch(
        token_ids=nothing,
        query_lens=nothing,
        context_lens=nothing,
        block_tables=nothing,
        block_table_offsets=int32([0]),
        sample=np.zeros(0, np.bool_),
        sampling=[],
    )
    with pytest.raises(BatchError, match="query_lens is empty"):
        driver(build()[0]).engine.forward(empty)


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("form", FORMS)
def test_a_token_of_zeros_gives_zeros(form: str, isa: str) -> None:
    """A block of zeros has no scale to divide by."""
    description = reference.describe(tied_embeddings=False)
    weights = reference.random_weights(description)
    weights["embed.weight"][0] = 0
    weights["embed.weight"][1, :32] = 0
    model, meant = model_of(description, weights, form)
    tokens = [0, 1, 5]
    found = driver(model, isa=instruction_set(isa)).follow(tokens)
    assert not found[0].any()
    assert np.abs(found - reference.logits(description, meant, tokens, Arithmetic(form))).max() < FLIPPED * found.max()
