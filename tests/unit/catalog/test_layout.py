from dataclasses import replace

import pytest
from doubles.tiny_model import tiny_model

from tie.catalog.errors import BundleRejected
from tie.catalog.layout import PARTS, Form, check_tensors, expected_tensors, part_shape
from tie.catalog.safetensors_header import Tensor

MODEL = tiny_model(layer_count=1)


def stored(form: Form) -> dict[str, Tensor]:
    tensors = {}
    for expected in expected_tensors(MODEL):
        for suffix, dtype, covers in PARTS[form if expected.is_matrix else "f32"]:
            name = expected.name + suffix
            tensors[name] = Tensor(name, dtype, part_shape(expected.shape, covers), 0, 0)
    return tensors


@pytest.mark.parametrize("form", PARTS)
def test_each_form_is_recognised(form: Form) -> None:
    forms = check_tensors(MODEL, stored(form))
    assert forms["layers.0.attn.q.weight"] == form
    assert forms["norm.weight"] == "f32"


@pytest.mark.parametrize("form", PARTS)
def test_a_missing_part_is_refused_by_name(form: Form) -> None:
    for name in stored(form):
        tensors = stored(form)
        if name.endswith(".min"):
            continue  # without it the tensor is int4, which is complete
        del tensors[name]
        with pytest.raises(BundleRejected, match=r"tensor .* (is missing|does not belong)"):
            check_tensors(MODEL, tensors)


def test_a_tensor_of_another_shape_or_dtype_is_refused() -> None:
    tensors = stored("int8")
    name = "layers.0.attn.k.weight.scale"
    with pytest.raises(BundleRejected, match=rf"{name} has shape \[32, 3\], not \[32, 2\]"):
        check_tensors(MODEL, tensors | {name: replace(tensors[name], shape=(32, 3))})
    with pytest.raises(BundleRejected, match=f"{name} is F32, not F16"):
        check_tensors(MODEL, tensors | {name: replace(tensors[name], dtype="F32")})
    with pytest.raises(BundleRejected, match=r"norm.weight is BF16, not F32"):
        check_tensors(MODEL, tensors | {"norm.weight": replace(tensors["norm.weight"], dtype="BF16")})


def test_a_tensor_that_nobody_asked_for_is_refused() -> None:
    for name in ("lm_head.bias", "layers.1.attn.q.weight", "layers.0.attn.q.bias", "embed.weight.q"):
        with pytest.raises(BundleRejected, match=f"tensor {name} does not belong to the model"):
            check_tensors(MODEL, stored("f32") | {name: Tensor(name, "F32", (1,), 0, 0)})


def test_a_head_beside_tied_embeddings_is_refused() -> None:
    with pytest.raises(BundleRejected, match=r"lm_head\.weight does not belong"):
        check_tensors(replace(MODEL, tied_embeddings=True), stored("f32"))


def test_blocks_need_rows_of_whole_blocks() -> None:
    model = tiny_model(layer_count=1, hidden_size=72)
    tensors = {}
    for expected in expected_tensors(model):
        form: Form = "int8" if expected.name == "embed.weight" else "f32"
        for suffix, dtype, covers in PARTS[form]:
            shape = part_shape(expected.shape, covers)
            tensors[expected.name + suffix] = Tensor(expected.name + suffix, dtype, shape, 0, 0)
    with pytest.raises(BundleRejected, match=r"embed\.weight has blocks, but its rows of 72 do not"):
        check_tensors(model, tensors)
