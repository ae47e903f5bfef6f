from dataclasses import replace

import pytest
from doubles.tiny_model import tiny_model

from tie.catalog.errors import BundleRejected
from tie.catalog.layout import PARTS, Form, check_tensors, expected_tensors
from tie.catalog.safetensors_header import Tensor

MODEL = tiny_model(layer_count=1)
FLAGS = ("qkv_bias", "output_bias", "mlp_bias", "qk_norm", "post_norms")


def stored(form: Form) -> dict[str, Tensor]:
    tensors = {}
    for expected in expected_tensors(MODEL):
        for part in PARTS[form if expected.is_matrix else "f32"]:
            name = expected.name + part.suffix
            tensors[name] = Tensor(name, part.dtype, part.shape(expected.shape), 0, 0)
    return tensors


def matrix(form: Form, shape: tuple[int, int]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {part.suffix: (part.dtype, part.shape(shape)) for part in PARTS[form]}


def test_parts_have_the_shapes_of_the_layout() -> None:
    scale = ("F16", (3, 3, 16))
    assert matrix("f32", (33, 97)) == {"": ("F32", (3, 97, 16))}
    assert matrix("bf16", (33, 97)) == {"": ("BF16", (3, 49, 16, 2))}
    assert matrix("int8", (33, 96)) == {".q": ("U8", (3, 24, 16, 4)), ".scale": scale}
    assert matrix("int4", (33, 96)) == {".q": ("U8", (3, 3, 4, 16, 4)), ".scale": scale}
    assert matrix("int4_min", (33, 96)) == matrix("int4", (33, 96)) | {".min": scale}
    assert matrix("f32", (1, 1)) == {"": ("F32", (1, 1, 16))}
    assert matrix("f32", (16, 1)) == {"": ("F32", (1, 1, 16))}
    assert matrix("f32", (17, 1)) == {"": ("F32", (2, 1, 16))}
    assert PARTS["f32"][0].shape((7,)) == (7,)


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
    with pytest.raises(BundleRejected, match=rf"{name} has shape \[2, 3, 16\], not \[2, 2, 16\]"):
        check_tensors(MODEL, tensors | {name: replace(tensors[name], shape=(2, 3, 16))})
    with pytest.raises(BundleRejected, match=f"{name} is F32, not F16"):
        check_tensors(MODEL, tensors | {name: replace(tensors[name], dtype="F32")})
    with pytest.raises(BundleRejected, match=r"norm.weight is BF16, not F32"):
        check_tensors(MODEL, tensors | {"norm.weight": replace(tensors["norm.weight"], dtype="BF16")})


@pytest.mark.parametrize("form", PARTS)
def test_every_axis_of_every_part_counts(form: Form) -> None:
    tensors = stored(form)
    for part in PARTS[form]:
        name = "layers.0.mlp.down.weight" + part.suffix
        shape = tensors[name].shape
        wrong = [(*shape[:at], shape[at] + 1, *shape[at + 1 :]) for at in range(len(shape))]
        for other in [*wrong, shape[:-1], (*shape, 1), ()]:
            with pytest.raises(BundleRejected, match=rf"tensor {name} has shape"):
                check_tensors(MODEL, tensors | {name: replace(tensors[name], shape=other)})


def test_rows_of_the_former_layout_are_refused() -> None:
    tensors, name = stored("int8"), "layers.0.attn.k.weight.q"
    for dtype, fault in (("I8", "is I8, not U8"), ("U8", r"has shape \[32, 64\], not \[2, 2, 4, 16, 4\]")):
        with pytest.raises(BundleRejected, match=f"{name} {fault}"):
            check_tensors(MODEL, tensors | {name: Tensor(name, dtype, (32, 64), 0, 0)})


def test_a_tensor_that_nobody_asked_for_is_refused() -> None:
    for name in (
        "lm_head.bias",
        "layers.1.attn.q.weight",
        "layers.0.attn.q.bias",
        "layers.0.attn.o.bias",
        "layers.0.mlp.up.bias",
        "layers.0.attn.q_norm.weight",
        "layers.0.attn_post_norm.weight",
        "embed.weight.q",
    ):
        with pytest.raises(BundleRejected, match=f"tensor {name} does not belong to the model"):
            check_tensors(MODEL, stored("f32") | {name: Tensor(name, "F32", (1,), 0, 0)})


@pytest.mark.parametrize("flag", FLAGS)
def test_what_a_flag_promises_must_be_there(flag: str) -> None:
    with pytest.raises(BundleRejected, match=r"tensor layers\.0\.\w+(\.\w+)?\.(bias|weight) is missing"):
        check_tensors(tiny_model(layer_count=1, **{flag: True}), stored("f32"))


def test_each_flag_brings_its_vectors() -> None:
    plain = {expected.name for expected in expected_tensors(MODEL)}
    brought = {}
    for flag in FLAGS:
        model = tiny_model(layer_count=1, **{flag: True})
        more = {expected.name: expected.shape for expected in expected_tensors(model) if expected.name not in plain}
        brought[flag] = {name.removeprefix("layers.0."): shape for name, shape in more.items()}
    assert brought == {
        "qkv_bias": {"attn.q.bias": (64,), "attn.k.bias": (32,), "attn.v.bias": (32,)},
        "output_bias": {"attn.o.bias": (64,)},
        "mlp_bias": {"mlp.gate.bias": (128,), "mlp.up.bias": (128,), "mlp.down.bias": (64,)},
        "qk_norm": {"attn.q_norm.weight": (16,), "attn.k_norm.weight": (16,)},
        "post_norms": {"attn_post_norm.weight": (64,), "mlp_post_norm.weight": (64,)},
    }


def test_a_head_beside_tied_embeddings_is_refused() -> None:
    with pytest.raises(BundleRejected, match=r"lm_head\.weight does not belong"):
        check_tensors(replace(MODEL, tied_embeddings=True), stored("f32"))


def test_blocks_need_rows_of_whole_blocks() -> None:
    model = tiny_model(layer_count=1, hidden_size=72)
    tensors = {}
    for expected in expected_tensors(model):
        form: Form = "int8" if expected.name == "embed.weight" else "f32"
        for part in PARTS[form]:
            name = expected.name + part.suffix
            tensors[name] = Tensor(name, part.dtype, part.shape(expected.shape), 0, 0)
    with pytest.raises(BundleRejected, match=r"embed\.weight has blocks, but its rows of 72 do not"):
        check_tensors(model, tensors)
