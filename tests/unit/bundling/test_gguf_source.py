from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles.gguf_file import ARRAY, BOOL, F32, STRING, U32, GgufFile, Tensor, interleaved, tiny_gguf, weights_in
from doubles.reference_model import read_weights
from doubles.tiny_model import CHAT_TEMPLATE, TEST_KEY, TEST_TRUSTED, tiny_model, tiny_weights

from tie.bundling import convert
from tie.bundling.convert import Requested
from tie.bundling.errors import SourceRejected
from tie.bundling.gguf_model import llama3_divisors
from tie.bundling.importing import Wanted, import_bundle
from tie.catalog import Bundle, open_bundle
from tie.catalog.attention import uniform
from tie.catalog.description import ModelDescription
from tie.catalog.errors import CatalogError
from tie.catalog.rope import LinearScaling, Llama3Scaling, Rope, RopeScaling, YarnScaling

MODEL = tiny_model(layer_count=1)
QWEN2 = tiny_model(layer_count=1, architecture="qwen2", qkv_bias=True, tied_embeddings=True)


def imported(tmp_path: Path, file: GgufFile, requested: Requested = "as-is") -> Bundle:
    (tmp_path / "Tiny-Model.Q4_1.gguf").write_bytes(file.to_bytes())
    import_bundle(tmp_path / "Tiny-Model.Q4_1.gguf", tmp_path / "bundle", Wanted(requested, force=True), TEST_KEY)
    return open_bundle(tmp_path / "bundle", trusted_keys=TEST_TRUSTED)


def without(file: GgufFile, *keys: str) -> GgufFile:
    for key in keys:
        del file.values[key]
    return file


def changed(model: ModelDescription = MODEL, **values: Any) -> GgufFile:
    file = tiny_gguf(model)
    file.values |= {key.replace("__", "."): value for key, value in values.items()}
    return file


def llama(**values: Any) -> GgufFile:
    return changed(**{f"llama__{key}": value for key, value in values.items()})


def with_tensor(name: str, count: int = 64) -> GgufFile:
    file = tiny_gguf(MODEL)
    file.tensors.append(Tensor(name, (count,), 0, bytes(4 * count)))
    return file


def without_tensor(name: str) -> GgufFile:
    file = tiny_gguf(MODEL)
    file.tensors = [tensor for tensor in file.tensors if tensor.name != name]
    return file


@pytest.mark.parametrize(
    ("file", "fault"),
    [
        (changed(general__architecture=(STRING, "gemma")), "is of architecture gemma; imported are llama, qwen2"),
        (changed(general__architecture=(U32, 1)), "is of architecture ?"),
        (without(tiny_gguf(MODEL), "general.architecture"), "is of architecture ?"),
        (without(tiny_gguf(MODEL), "llama.block_count"), "key llama.block_count is missing"),
        (llama(block_count=(STRING, "1")), "key llama.block_count must be an integer"),
        (llama(block_count=(U32, 2)), "has no tensor for layers.1.attn_norm.weight"),
        (llama(block_count=(U32, 2**31)), "key llama.block_count is outside"),
        (llama(embedding_length=(U32, 128)), "tensor for embed.weight has shape [512, 64], the model needs [512, 128]"),
        (llama(attention__head_count=(U32, 0)), "key llama.attention.head_count is outside"),
        (llama(attention__head_count_kv=(U32, 3)), "query_heads is 4, not a multiple of kv_heads 3"),
        (llama(attention__head_count_kv=(ARRAY, U32, [2])), "head_count_kv must be an integer"),
        (llama(attention__value_length=(U32, 8)), "value_length differs from attention.key_length"),
        (llama(attention__layer_norm_rms_epsilon=(F32, float("nan"))), "layer_norm_rms_epsilon is outside"),
        (llama(rope__dimension_count=(U32, 8)), "rope.dimension_count is 8, not the head's 16"),
        (llama(rope__scaling__type=(STRING, "longrope")), "rope.scaling.type must be one of none, linear, yarn"),
        (llama(rope__scaling__type=(STRING, "linear")), "rope.scaling.factor is missing"),
        (llama(expert_count=(U32, 8)), "expert_count is outside 0..0"),
        (llama(logit_scale=(F32, 2.0)), "key llama.logit_scale is not known"),
        (llama(attention__sliding_window=(F32, 8.0)), "key llama.attention.sliding_window must be an integer"),
        (llama(attention__sliding_window_pattern=(U32, 2)), "key llama.attention.sliding_window_pattern is not known"),
        (changed(QWEN2, qwen2__attention__sliding_window=(U32, 8)), "key qwen2.attention.sliding_window is not known"),
        (llama(vocab_size=(U32, 511)), "vocab_size is not the 512 of the embedding"),
        (with_tensor("blk.0.attn_output.bias"), "tensor blk.0.attn_output.bias is not one that the model family has"),
        (with_tensor("blk.00.attn_q.weight"), "tensor blk.00.attn_q.weight is not one"),
        (with_tensor("blk.1.attn_norm.weight"), "tensor for layers.1.attn_norm.weight does not belong"),
        (with_tensor("blk.0.attn_q.bias"), "attention biases, which are not imported for llama"),
        (with_tensor("rope_freqs.weight", 7), "rope_freqs.weight is not a tensor of 8 numbers"),
        (with_tensor("rope_freqs.weight", 8), "rope_freqs.weight is not a tensor of 8 numbers"),
        (without_tensor("blk.0.ffn_up.weight"), "has no tensor for layers.0.mlp.up.weight"),
        (without_tensor("token_embd.weight"), "tensor token_embd.weight is missing"),
        (changed(tokenizer__ggml__tokens=(ARRAY, STRING, ["a"])), "token_type is not a list of 1 types"),
        (changed(tokenizer__chat_template=(STRING, "{% for %}")), "chat template: is not a valid template, at line 1"),
        (changed(tokenizer__chat_template=(U32, 1)), "tokenizer.chat_template is not a string"),
    ],
)
def test_a_file_that_is_no_model_of_ours_is_refused(tmp_path: Path, file: GgufFile, fault: str) -> None:
    with pytest.raises(CatalogError) as rejected:
        imported(tmp_path, file)
    assert fault in str(rejected.value)
    assert not (tmp_path / "bundle").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["Tiny-Model.Q4_1.gguf"]


def test_a_weight_that_is_not_finite_is_refused_by_name(tmp_path: Path) -> None:
    for form in ("f32", "q8_0", "q4_0", "q4_1", "f16", "bf16"):
        file = tiny_gguf(MODEL, form=form)
        tensor = next(tensor for tensor in file.tensors if tensor.name == "blk.0.ffn_up.weight")
        tensor.data = b"\xff\x7f\xff\x7f" + tensor.data[4:]  # NaN as f32, f16, bf16, and as a block's scale
        with pytest.raises(SourceRejected, match=r"tensor layers\.0\.mlp\.up\.weight holds NaN"):
            imported(tmp_path, file)


@pytest.mark.parametrize("form", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"])
def test_numbers_are_kept_as_they_are(tmp_path: Path, form: str) -> None:
    expected = weights_in(tiny_weights(MODEL, 7), form)
    with imported(tmp_path, tiny_gguf(MODEL, 7, form)) as bundle:
        weights = read_weights(bundle)
        stored = {"f16": "f32", "q8_0": "int8", "q4_0": "int4", "q4_1": "int4_min"}.get(form, form)
        assert bundle.forms["layers.0.attn.k.weight"] == stored
        assert bundle.forms["norm.weight"] == "f32"
        assert bundle.description.model.dtype == stored.removesuffix("_min")
    assert weights.keys() == expected.keys()
    for name, values in expected.items():
        assert (weights[name] == values).all(), name


@pytest.mark.parametrize("form", ["f32", "q8_0", "q4_0", "q4_1"])
def test_chunks_that_end_within_a_head_keep_every_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The rows of q and k move within their heads, which here are longer than a chunk."""
    monkeypatch.setattr(convert, "_CHUNK_ELEMENTS", 1)
    model = tiny_model(layer_count=1, head_dim=32, query_heads=3, kv_heads=1, hidden_size=96)
    expected = weights_in(tiny_weights(model, 7), form)
    with imported(tmp_path, tiny_gguf(model, 7, form)) as bundle:
        for name, values in read_weights(bundle).items():
            assert (values == expected[name]).all(), name


@pytest.mark.parametrize("form", ["f32", "q8_0", "q4_1"])
def test_f32_holds_what_the_blocks_meant(tmp_path: Path, form: str) -> None:
    expected = weights_in(tiny_weights(MODEL, 7), form)
    with imported(tmp_path, tiny_gguf(MODEL, 7, form), "f32") as bundle:
        assert set(bundle.forms.values()) == {"f32"}
        for name, values in read_weights(bundle).items():
            assert (values == expected[name]).all(), name


def test_requested_forms_are_made_and_fitting_ones_kept(tmp_path: Path) -> None:
    cases: list[tuple[str, Requested, str, str]] = [
        ("f32", "int4", "int8", "int4"),
        ("q4_1", "int4", "int4_min", "int4_min"),
        ("q8_0", "int4", "int8", "int4"),
        ("q4_1", "int8", "int8", "int8"),
        ("f32", "bf16", "bf16", "bf16"),
    ]
    for form, requested, embedding, linear in cases:
        with imported(tmp_path, tiny_gguf(MODEL, 7, form), requested) as bundle:
            assert bundle.forms["embed.weight"] == embedding
            assert bundle.forms["layers.0.mlp.down.weight"] == linear


def test_rows_without_whole_blocks_become_bf16(tmp_path: Path) -> None:
    model = tiny_model(layer_count=1, hidden_size=72, intermediate_size=128)
    with imported(tmp_path, tiny_gguf(model), "int8") as bundle:
        assert bundle.forms["layers.0.attn.q.weight"] == "bf16"
        assert bundle.forms["layers.0.mlp.down.weight"] == "int8"


def test_qwen2_keeps_its_row_order_and_biases(tmp_path: Path) -> None:
    with imported(tmp_path, tiny_gguf(QWEN2, 3)) as bundle:
        assert bundle.description.model == QWEN2
        for name, values in tiny_weights(QWEN2, 3).items():
            assert (read_weights(bundle)[name] == values).all(), name


def test_interleaving_is_what_the_test_believes_it_is() -> None:
    rows = np.arange(8, dtype=np.float32).reshape(8, 1)
    assert interleaved(rows, 2).reshape(-1).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_the_description_says_what_the_file_says(tmp_path: Path) -> None:
    with imported(tmp_path, tiny_gguf(MODEL)) as bundle:
        described = bundle.description
        assert described.model == MODEL
        assert described.name == "tiny-model"
        assert (described.tokenizer.bos_token_id, described.tokenizer.add_bos) == (1, False)
        assert described.tokenizer.eos_token_ids == (2, 0)
        assert described.kv.dtype == "f32"
        assert bundle.template("chat") == CHAT_TEMPLATE


def test_a_file_without_a_template_makes_a_bundle_without(tmp_path: Path) -> None:
    with imported(tmp_path, without(tiny_gguf(MODEL), "tokenizer.chat_template")) as bundle:
        assert bundle.description.chat_template is None
        assert bundle.template_ids == ()


def scaling_of(bundle: Bundle) -> RopeScaling:
    rope = bundle.description.model.kind_of(0).rope
    assert rope is not None
    return rope.scaling


@pytest.mark.parametrize(("window", "kept"), [(0, None), (8, 8), (511, 511), (512, None), (4096, None)])
def test_a_window_is_every_layer_s_unless_the_context_fits_into_it(
    tmp_path: Path, window: int, kept: int | None
) -> None:
    with imported(tmp_path, llama(attention__sliding_window=(U32, window))) as bundle:
        model = bundle.description.model
        assert model.attention == uniform(Rope(10_000.0, 16), kept)
        assert model.context_length == 512


def test_qwen2_may_rotate_a_part_of_each_head(tmp_path: Path) -> None:
    with imported(tmp_path, changed(QWEN2, qwen2__rope__dimension_count=(U32, 8))) as bundle:
        assert bundle.description.model.kind_of(0).rope == Rope(10_000.0, 8)


def test_rope_scalings_are_read(tmp_path: Path) -> None:
    linear = llama(rope__scaling__type=(STRING, "linear"), rope__scaling__factor=(F32, 4.0))
    with imported(tmp_path, linear) as bundle:
        assert scaling_of(bundle) == LinearScaling(4.0)
    yarn = llama(
        rope__scaling__type=(STRING, "yarn"),
        rope__scaling__factor=(F32, 4.0),
        rope__scaling__original_context_length=(U32, 128),
        rope__scaling__finetuned=(BOOL, True),
    )
    with imported(tmp_path, yarn) as bundle:
        assert scaling_of(bundle) == YarnScaling(4.0, 128, 32.0, 1.0)


def test_llama3_scaling_is_recognised_by_its_divisors(tmp_path: Path) -> None:
    scaling = Llama3Scaling(32.0, 1.0, 4.0, 8192)
    divisors = llama3_divisors(scaling, 500_000.0, 16)
    assert divisors[0] == 1
    assert divisors[-1] == 32
    file = llama(rope__freq_base=(F32, 500_000.0))
    file.tensors.append(Tensor("rope_freqs.weight", (8,), 0, divisors.tobytes()))
    with imported(tmp_path, file) as bundle:
        assert scaling_of(bundle) == scaling
    file.tensors[-1].data = np.linspace(1, 32, 8, dtype=np.float32).tobytes()
    with pytest.raises(CatalogError, match="is a scaling other than that of the released Llama 3 models"):
        imported(tmp_path, file)


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tie.bundling import importing

    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_gguf(MODEL).to_bytes())
    check = importing.check_tokenizer

    def truncating(*args: Any) -> None:
        check(*args)
        path.write_bytes(path.read_bytes()[:-5000])

    monkeypatch.setattr(importing, "check_tokenizer", truncating)
    with pytest.raises(SourceRejected, match="the file became shorter while it was read"):
        import_bundle(path, tmp_path / "bundle", Wanted(), TEST_KEY)
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.gguf"]
