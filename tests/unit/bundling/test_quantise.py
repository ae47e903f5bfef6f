from typing import cast

import numpy as np
import numpy.typing as npt
import pytest
from gguf import GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tie.bundling.quantise import NotFinite, bf16_to_f32, decode, encode, f32_to_bf16, pack_nibbles, unpack_nibbles
from tie.catalog.layout import BLOCK, PARTS, Form

F32 = npt.NDArray[np.float32]
FORMS: list[Form] = list(PARTS)
QUANTISED: list[Form] = ["int8", "int4", "int4_min"]


def random(seed: int, rows: int = 8, columns: int = 96) -> F32:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused(form: Form, bad: float) -> None:
    values = random(0)
    values[3, 40] = bad
    with pytest.raises(NotFinite):
        encode(values, form)


@pytest.mark.parametrize("form", QUANTISED)
def test_a_scale_beyond_f16_is_refused(form: Form) -> None:
    values = random(0)
    values[0, 0] = 1e8
    with pytest.raises(NotFinite):
        encode(values, form)


def test_a_value_that_rounds_to_infinity_in_bf16_is_refused() -> None:
    with pytest.raises(NotFinite):
        encode(np.full((1, 32), np.finfo(np.float32).max), "bf16")


def test_parts_are_rows_of_what_each_form_keeps() -> None:
    scale = ((8, 3), "float16")
    for form, expected in {
        "f32": {"": ((8, 96), "float32")},
        "bf16": {"": ((8, 96), "uint16")},
        "int8": {".q": ((8, 96), "int8"), ".scale": scale},
        "int4": {".q": ((8, 48), "uint8"), ".scale": scale},
        "int4_min": {".q": ((8, 48), "uint8"), ".scale": scale, ".min": scale},
    }.items():
        stored = encode(random(1), cast(Form, form))
        assert {name: (part.shape, part.dtype.name) for name, part in stored.items()} == expected


@pytest.mark.parametrize(
    ("form", "most"), [("f32", 0.0), ("bf16", 2**-8), ("int8", 0.006), ("int4", 0.12), ("int4_min", 0.08)]
)
def test_error_is_what_the_form_s_bits_allow(form: Form, most: float) -> None:
    values = random(2, 64)
    error = np.abs(decode(encode(values, form), form) - values).reshape(64, -1, BLOCK)
    peak = np.abs(values).reshape(64, -1, BLOCK).max(axis=2, keepdims=True)
    assert (error / peak).max() <= most
    assert most == 0 or (error / peak).max() > 0


@pytest.mark.parametrize("form", QUANTISED)
@pytest.mark.parametrize("value", [0.0, 1e-30, -1e-30, 2.0, -3.0])
def test_a_block_of_one_value_keeps_it(form: Form, value: float) -> None:
    values = np.full((2, 64), value, np.float32)
    np.testing.assert_allclose(decode(encode(values, form), form), values, rtol=2e-3, atol=1e-7)


@settings(max_examples=50, deadline=None)
@given(arrays.arrays(np.float32, (1, 64), elements=st.floats(-1000, 1000, width=32)))
def test_no_finite_block_is_far_off(values: F32) -> None:
    peak = np.abs(values).reshape(-1, BLOCK).max(axis=1)
    for form in QUANTISED:
        error = (decode(encode(values, form), form) - values).reshape(-1, BLOCK).astype(np.float64)
        typical = np.sqrt(np.square(error).mean(axis=1))
        assert (typical <= peak * {"int8": 0.006, "int4": 0.13, "int4_min": 0.08}[form] + 1e-5).all()


def test_int4_is_fitted_at_least_as_well_as_the_plain_way() -> None:
    values = random(3, 256)
    plain = quants.dequantize(quants.quantize(values, GGMLQuantizationType.Q4_0), GGMLQuantizationType.Q4_0)
    ours = decode(encode(values, "int4"), "int4")
    assert np.square(ours - values).sum() < np.square(plain - values).sum()


def test_bf16_rounds_as_the_gguf_package_does() -> None:
    values = np.concatenate([random(4).reshape(-1), np.float32([0, -0.0, 1, 1.00390625, 1.01171875, 1e-40, 3e38])])
    expected = quants.quantize(values[None], GGMLQuantizationType.BF16).view(np.uint16)[0]
    ours = f32_to_bf16(values)
    assert (ours[:-2] == expected[:-2]).all()
    assert bf16_to_f32(f32_to_bf16(np.float32([1.00390625, 1.01171875]))).tolist() == [1.0, 1.015625]  # ties to even


def test_nibbles_lie_as_the_layout_says() -> None:
    q = np.arange(BLOCK, dtype=np.uint8).reshape(1, 1, BLOCK) % 16
    q[0, 0, 16:] = 15 - q[0, 0, 16:]
    packed = pack_nibbles(q)
    assert packed.shape == (1, 16)
    assert packed[0, 3] & 15 == q[0, 0, 3]
    assert packed[0, 3] >> 4 == q[0, 0, 19]
    assert (unpack_nibbles(packed) == q).all()
