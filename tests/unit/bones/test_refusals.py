"""What Bones refuses: descriptions, images, batches, blocks. Nothing here may crash or read out of bounds."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.bones.images import build, descriptors, image, stored
from unit.bones.reference import describe, random_weights
from unit.bones.sequences import Chunk, driver, int32, tokens_of

from tie.bones import Batch, BatchError, BonesError, DescriptionError, Engine, Model, WeightsError


@pytest.fixture(scope="module")
def model() -> Model:
    return build()[0]


def arrays() -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, values in random_weights(describe()).items():
        parts |= stored(name, values, "f32")[0]
    return parts


def load(*images: bytes, **changes: Any) -> Model:
    with descriptors(*images) as fds:
        return Model(json.dumps(describe(**changes)), fds)


def test_descriptions_are_refused_by_field() -> None:
    for text, told in (
        ("", "EOF"),
        ("[]", "invalid length"),
        (json.dumps(describe(surprise=1)), "unknown field `surprise`"),
        (json.dumps(describe(rope={"scaling": {"kind": "magic"}})), "unknown variant `magic`"),
        (json.dumps(describe(head_dim=0)), "head_dim is 0, must be 2 to 1024"),
        (json.dumps(describe(layout="rows-1")), "import the model again"),
        (json.dumps(describe(query_heads=5)), "query_heads is 5, must be a multiple of kv_heads"),
        (json.dumps(describe()).replace("1e-05", "NaN"), "expected value"),
    ):
        with pytest.raises(DescriptionError, match=told):
            Model(text, [])


def test_images_are_refused_by_tensor() -> None:
    whole = arrays()
    for change, told in (
        ({"norm.weight": None}, r"norm\.weight is missing"),
        ({"extra.weight": np.zeros(1, "<f4")}, r"extra\.weight is not part"),
        ({"norm.weight": np.zeros(63, "<f4")}, r"norm\.weight is F32 \[63\], must be F32 \[64\]"),
        ({"norm.weight": np.zeros(64, "<u2")}, r"norm\.weight is Bf16"),
        ({"lm_head.weight": whole["embed.weight"]}, r"lm_head\.weight is not part"),
        ({"layers.1.attn.q.weight": np.zeros((64, 64), "i1")}, r"layers\.1\.attn\.q\.weight is I8"),
    ):
        kept = {name: values for name, values in (whole | change).items() if values is not None}
        with pytest.raises(WeightsError, match=told):
            load(image(kept))


def test_quantised_rows_must_be_whole_blocks() -> None:
    d = describe(intermediate_size=80)
    parts: dict[str, Any] = {}
    for name, values in random_weights(d).items():
        parts |= stored(name, values, "f32")[0]
    del parts["layers.0.mlp.down.weight"]
    parts |= {
        "layers.0.mlp.down.weight.q": np.zeros((4, 20, 16, 4), "u1"),
        "layers.0.mlp.down.weight.scale": np.zeros((4, 2, 16), "<f2"),
    }
    with pytest.raises(WeightsError, match="rows of 80 elements, quantised rows must be a multiple of 32"):
        load(image(parts), intermediate_size=80)


def test_a_name_in_two_images_is_refused_and_a_spread_model_is_not() -> None:
    whole = arrays()
    names = sorted(whole)
    first, second = ({name: whole[name] for name in part} for part in (names[:5], names[5:]))
    assert load(image(first), image(second)).weight_bytes == sum(values.nbytes for values in whole.values())
    with pytest.raises(WeightsError, match=r"weights image 1: tensor .* occurs in an earlier image"):
        load(image(whole), image({names[0]: whole[names[0]]}))


@pytest.mark.parametrize("cut", [0, 7, 8, 100, -1])
def test_truncated_images_are_refused(cut: int) -> None:
    with pytest.raises(WeightsError, match="weights image 0: "):
        load(image(arrays())[:cut])


@given(st.integers(0, 4000), st.binary(min_size=1, max_size=12))
@settings(max_examples=100, deadline=None)
def test_damaged_headers_never_crash(at: int, damage: bytes) -> None:
    content = bytearray(image(arrays()))
    content[at : at + len(damage)] = damage
    with suppress(WeightsError):
        load(bytes(content))


def test_descriptors_that_are_none_are_refused() -> None:
    read, write = os.pipe()
    try:
        for fd in (-1, 1_000_000, read):
            with pytest.raises(WeightsError, match=r"cannot be mapped|image 0"):
                Model(json.dumps(describe()), [fd])
    finally:
        os.close(read)
        os.close(write)


def test_the_callers_descriptors_stay_its_own() -> None:
    with descriptors(image(arrays())) as fds:
        before = len(os.listdir("/proc/self/fd"))
        model = Model(json.dumps(describe()), fds)
        os.fstat(fds[0])
        assert len(os.listdir("/proc/self/fd")) == before
    assert driver(model).follow([1, 2]).shape == (2, 90)


@pytest.mark.parametrize(
    "options",
    [
        {"block_count": 0},
        {"block_count": -1},
        {"block_count": 1 << 40},
        {"block_size_tokens": 0},
        {"block_size_tokens": 1025},
        {"threads": 0},
        {"threads": -3},
        {"threads": 5000},
        {"kv_dtype": "f16"},
        {"isa": "mmx"},
    ],
)
def test_engines_out_of_range_are_refused_by_name(model: Model, options: dict[str, Any]) -> None:
    with pytest.raises(BatchError, match=next(iter(options)) if "isa" not in options else "instruction set"):
        driver(model, **options)


def test_a_cache_that_memory_cannot_hold_is_an_error(model: Model) -> None:
    with pytest.raises(BonesError, match="out of memory for the KV cache"):
        driver(build(layer_count=2, kv_heads=4, head_dim=1024)[0], block_count=1 << 24, block_size_tokens=1024)


def test_arrays_of_another_kind_are_refused_by_name(model: Model) -> None:
    run = driver(model)
    for field, wrong in (
        ("token_ids", np.array([1, 2], np.int64)),
        ("query_lens", [2]),
        ("context_lens", np.array([[2]], np.int32)),
        ("block_tables", None),
        ("block_table_offsets", np.zeros(4, np.int32)[::2]),
        ("sample", np.array([1], np.int32)),
        ("allowed_mask", np.zeros(3, np.uint32)),
        ("token_ids", np.array([1, 2], ">i4")),
    ):
        with pytest.raises(BatchError, match=f"{field} must be a contiguous array"):
            run.batch([Chunk(0, [1, 2])], **{field: wrong})


def test_batches_out_of_range_are_refused_and_change_nothing(model: Model) -> None:
    run, fresh = driver(model), driver(model)
    tokens = tokens_of(6)
    run.follow(tokens)
    before = run.engine.read_blocks(range(64))
    good: dict[str, Any] = {
        "token_ids": int32([1, 2]),
        "query_lens": int32([2]),
        "context_lens": int32([8]),
        "block_tables": int32(run.tables[0]),
        "block_table_offsets": int32([0, 2]),
        "sample": np.array([False]),
        "sampling": [None],
    }
    for changes, told in (
        ({"token_ids": int32([1, 90])}, "token_ids entry 1 of the row lies outside the vocabulary of 90"),
        ({"token_ids": int32([-1, 1])}, "token_ids entry 0 of the row lies outside the vocabulary of 90"),
        ({"query_lens": int32([3])}, "query_lens exceed token_ids"),
        ({"query_lens": int32([1])}, "token_ids has 2 entries, query_lens add up to 1"),
        ({"query_lens": int32([0])}, "query_lens must be at least 1"),
        ({"context_lens": int32([97])}, r"context_lens must be 2 \(its query_lens\) to 96"),
        ({"context_lens": int32([1])}, "context_lens must be 2"),
        ({"context_lens": int32([9])}, "block_tables has 2 blocks, 9 tokens need 3"),
        ({"block_tables": int32([0, 64])}, "block_tables entry 1 is 64, must be 0 to 63"),
        ({"block_tables": int32([-1, 0])}, "block_tables entry 0 is -1"),
        ({"block_tables": int32([5, 5])}, "block_tables entry 0 is block 5, which this step writes elsewhere"),
        ({"block_table_offsets": int32([0, 3])}, "block_table_offsets must run from 0 to 2"),
        ({"block_table_offsets": int32([-2, 2])}, "block_table_offsets must run from 0 to 2"),
        ({"sample": np.array([True])}, "row 0: sampling is missing"),
        ({"sample": np.array([True, False])}, "sample has 2 entries, must have 1"),
        ({"allowed_mask": np.zeros((1, 4), np.uint32)}, "allowed_mask has 4 words"),
        ({"poison": (0, 1.0)}, "poison is refused"),
    ):
        with pytest.raises(BatchError, match=told):
            run.engine.forward(Batch(**(good | changes)))
    assert np.array_equal(run.engine.read_blocks(range(64)), before)
    assert np.array_equal(run.follow([3]), fresh.follow([*tokens, 3])[-1:])


numbers = st.lists(st.one_of(st.integers(-2, 70), st.sampled_from([-(2**31), 2**31 - 1])), max_size=6)


@given(numbers, numbers, numbers, numbers, numbers)
@settings(max_examples=200, deadline=None)
def test_any_numbers_are_answered(tokens: Any, query: Any, context: Any, tables: Any, offsets: Any) -> None:
    rows = len(query)
    batch = Batch(
        token_ids=int32(tokens),
        query_lens=int32(query),
        context_lens=int32(context),
        block_tables=int32(tables),
        block_table_offsets=int32(offsets),
        sample=np.zeros(rows, np.bool_),
        sampling=[None] * rows,
    )
    with suppress(BatchError):
        _ENGINE.forward(batch)


_ENGINE = Engine(build()[0], block_count=60, block_size_tokens=4, kv_dtype="f32", threads=1)


def test_blocks_out_of_range_are_refused(model: Model) -> None:
    engine = driver(model).engine
    size = engine.kv_bytes_per_block
    for ids in ([64], [-1], [2**40], [1, 1]):
        for call in (engine.zero_blocks, engine.read_blocks, lambda i: engine.write_blocks(i, bytes(size * len(i)))):
            with pytest.raises(BatchError, match="ids entry"):
                call(ids)
    for wrong in (bytes(size - 1), bytes(size + 1), b""):
        with pytest.raises(BatchError, match="buffer has"):
            engine.write_blocks([0], wrong)
    for other in (np.zeros(size, np.int8), np.zeros(2 * size, np.uint8)[::2], "text", None):
        with pytest.raises(BatchError, match="buffer must be bytes"):
            engine.write_blocks([0], other)  # type: ignore[arg-type]
