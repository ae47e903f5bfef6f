"""Each architecture's configuration and tensors, as the library writes them and as older files have them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles.golden import TINY_CASES
from doubles.hf_config import config_of
from doubles.hf_directory import change_json, make_hf_directory
from doubles.reference_model import read_weights
from doubles.tiny_model import DATA, TEST_KEY, TEST_TRUSTED, tiny_weights
from safetensors.numpy import load_file, save_file

from tie.bundling.hf_families import FAMILIES
from tie.bundling.hf_model import read_model
from tie.bundling.importing import Wanted, import_bundle
from tie.catalog import open_bundle
from tie.catalog.attention import GLOBAL, LOCAL, AttentionKind, uniform
from tie.catalog.description import ModelDescription
from tie.catalog.errors import CatalogError
from tie.catalog.rope import LinearScaling, Rope

CONFIGS = DATA / "hf_configs"
SLIDING, FULL = "sliding_attention", "full_attention"


def written(case: str) -> dict[str, Any]:
    """By transformers itself; see tests/data/make_golden.py."""
    values: dict[str, Any] = json.loads((CONFIGS / f"{case}.json").read_text())
    return values


def described(case: str, **changes: Any) -> ModelDescription:
    return read_model(written(case) | changes).description


def refused(values: Mapping[str, Any], fault: str) -> None:
    with pytest.raises(CatalogError) as rejected:
        read_model(dict(values))
    assert fault in str(rejected.value)


@pytest.mark.parametrize(
    ("case", "changes", "fault"),
    [
        ("mistral", {"attention_bias": True}, "attention_bias must be False"),
        ("mistral-window", {"sliding_window": 0}, "sliding_window is outside"),
        ("mistral-window", {"layer_types": [FULL, SLIDING]}, f"layer_types must be ['{SLIDING}', '{SLIDING}']"),
        ("qwen2", {"mlp_bias": True}, "mlp_bias must be False"),
        ("qwen2", {"layer_types": [FULL]}, "for each of 2 layers"),
        ("qwen2", {"layer_types": [FULL, "chunked_attention"]}, "must have full_attention or sliding_attention"),
        ("qwen2", {"layer_types": [FULL, SLIDING]}, "sliding_window is not in use, but layer_types has"),
        ("qwen2", {"use_sliding_window": 1}, "use_sliding_window must be true or false"),
        ("qwen3", {"rope_parameters": {FULL: {}}}, "rope_parameters.full_attention is not known"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention must be False"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation must be one of silu, gelu_pytorch_tanh"),
        ("gemma2", {"query_pre_attn_scalar": 0}, "query_pre_attn_scalar is outside"),
        ("gemma2", {"attn_logit_softcapping": 0}, "attn_logit_softcapping is outside"),
        ("gemma2", {"final_logit_softcapping": -1.0}, "final_logit_softcapping is outside"),
        ("gemma2", {"sliding_window": None}, "sliding_window is not in use"),
        ("gemma3", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping must be None"),
        ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention must be False"),
        ("gemma3", {"sliding_window_pattern": 0, "layer_types": None}, "sliding_window_pattern is outside"),
        ("gemma3", {"rope_parameters": {"rope_theta": 1.0}}, "rope_parameters.rope_theta is not known"),
        ("gemma3", {"rope_parameters": {SLIDING: {"rope_type": "dynamic"}}}, f"{SLIDING}.rope_type must be one of"),
        ("smollm3", {"no_rope_layers": [1, 0]}, "no_rope_layers must be a list of 0 or 1 for each of 4 layers"),
        ("smollm3", {"no_rope_layers": [1, 1, 1, 2]}, "no_rope_layers must be a list of 0 or 1"),
        ("smollm3", {"no_rope_layers": [1, 1, 1, True]}, "no_rope_layers must be a list of 0 or 1"),
        ("smollm3", {"no_rope_layers": None, "no_rope_layer_interval": 0}, "no_rope_layer_interval is outside"),
        ("phi3", {"rope_parameters": {"rope_type": "longrope"}}, "rope_parameters.rope_type must be one of default"),
        ("phi3", {"rope_parameters": None, "rope_scaling": {"type": "su"}}, "rope_scaling.type must be one of default"),
        ("phi3", {"rope_parameters": {"partial_rotary_factor": 1.5}}, "partial_rotary_factor is outside"),
        ("phi3", {"rope_parameters": {"partial_rotary_factor": 0.2}}, "rotary_dim is 3, not even"),
        ("llama2", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor must be 1.0"),
        ("yarn", {"original_max_position_embeddings": 17}, "original_max_position_embeddings must be 17"),
        ("gemma3-with-images", {"text_config": [1]}, "text_config must be a table"),
        ("gemma3-with-images", {"text_config": None}, "text_config is missing"),
        ("gemma3-with-images", {"quantization_config": {}}, "quantization_config is set"),
        ("gemma3-with-images", {"text_config": {"hidden_size": 1.5}}, "text_config.hidden_size must be an integer"),
        ("gemma3-with-images", {"text_config": {"quantization_config": {}}}, "text_config.quantization_config is set"),
    ],
)
def test_what_a_family_does_not_have_is_refused_by_name(case: str, changes: dict[str, Any], fault: str) -> None:
    read_model(written(case))
    refused(written(case) | changes, fault)


HOSTILE = (None, -1, 0, 1, True, 2**70, 0.5, 1e308, float("nan"), "", "x", [], [1], [[]], {}, {"x": {}}, {FULL: 1})


def corrupted(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each key in turn, at every depth, with each hostile value."""
    for key, value in values.items():
        yield from ({**values, key: hostile} for hostile in HOSTILE)
        if isinstance(value, dict):
            yield from ({**values, key: inner} for inner in corrupted(value))


@pytest.mark.parametrize("case", ["llama3", "mistral-window", "gemma3-with-images", "smollm3-window", "phi3", "qwen3"])
def test_whatever_a_key_holds_it_is_read_or_refused(case: str) -> None:
    was_refused = 0
    for values in corrupted(written(case)):
        try:
            read_model(values)
        except CatalogError:
            was_refused += 1
    assert was_refused > 100


@pytest.mark.parametrize("case", TINY_CASES)
def test_a_configuration_that_the_library_wrote_is_the_model_that_it_computed(case: str) -> None:
    assert described(case) == TINY_CASES[case]


@pytest.mark.parametrize("case", TINY_CASES)
def test_an_older_configuration_is_the_same_model(case: str) -> None:
    assert read_model(config_of(TINY_CASES[case])).description == TINY_CASES[case]


def test_every_family_is_among_the_cases() -> None:
    assert {model.architecture for model in TINY_CASES.values()} | {"gemma3"} == set(FAMILIES)


def test_the_text_part_of_a_model_that_sees_images_is_a_model_by_itself() -> None:
    model = read_model(written("gemma3-with-images"))
    assert model.description == replace(TINY_CASES["gemma3"], architecture="gemma3")
    assert model.notes == ("only the text model is imported: images are left out",)
    untied = read_model(written("gemma3-with-images") | {"tie_word_embeddings": False})
    assert not untied.description.tied_embeddings


def test_a_sparse_text_configuration_means_the_library_s_defaults() -> None:
    """As the published files of the 4 B model are: what is not written is what the class has."""
    sparse = {
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    model = read_model({"model_type": "gemma3", "text_config": sparse}).description
    assert (model.query_heads, model.kv_heads, model.head_dim, model.vocab_size) == (8, 4, 256, 262_208)
    assert (model.context_length, model.tied_embeddings, model.norm_eps) == (131_072, True, 1e-6)
    assert model.layer_pattern == (LOCAL,) * 5 + (GLOBAL,)
    assert model.attention == {
        GLOBAL: AttentionKind(None, Rope(1_000_000.0, 256, LinearScaling(8.0))),
        LOCAL: AttentionKind(1024, Rope(10_000.0, 256)),
    }
    assert (model.embedding_scale, model.attention_scale) == (2560**0.5, None)


@pytest.mark.parametrize(
    ("case", "key", "expected"),
    [("gemma2", "final_logit_softcapping", 30.0), ("gemma2", "attn_logit_softcapping", 50.0)],
)
def test_a_softcap_that_is_absent_is_the_default_and_one_that_is_null_is_none(
    case: str, key: str, expected: float
) -> None:
    name = {"final_logit_softcapping": "logit_softcap", "attn_logit_softcapping": "attention_softcap"}[key]
    absent = {other: value for other, value in written(case).items() if other != key}
    assert getattr(read_model(absent).description, name) == expected
    assert getattr(described(case, **{key: None}), name) is None


def test_a_window_that_is_absent_is_the_default_and_one_that_is_null_or_long_is_none() -> None:
    values = written("mistral-window") | {"max_position_embeddings": 8192}
    rope = TINY_CASES["mistral-window"].kind_of(0).rope
    del values["sliding_window"]
    assert read_model(values).description.attention == uniform(rope, 4096)
    for window in (None, 8192, 10_000):
        assert read_model(values | {"sliding_window": window}).description.attention == uniform(rope)


def test_windows_that_hide_nothing_leave_layers_that_differ_in_more_than_that() -> None:
    gemma3 = described("gemma3", sliding_window=512)
    assert gemma3.attention[LOCAL] == AttentionKind(None, Rope(10_000.0, 32))
    assert gemma3.layer_pattern == TINY_CASES["gemma3"].layer_pattern
    gemma2 = described("gemma2", sliding_window=512)
    assert (gemma2.attention, gemma2.layer_pattern) == (uniform(Rope(10_000.0, 32)), (GLOBAL,))


def test_layers_that_follow_no_pattern_are_listed() -> None:
    types = [SLIDING, FULL, FULL]
    assert described("gemma2", layer_types=types).layer_pattern == (LOCAL, GLOBAL, GLOBAL)


def imported(source: Path, bundle: Path) -> dict[str, np.ndarray[Any, Any]]:
    import_bundle(source, bundle, Wanted(force=True), TEST_KEY)
    with open_bundle(bundle, trusted_keys=TEST_TRUSTED) as opened:
        return read_weights(opened)


@pytest.mark.parametrize("case", TINY_CASES)
def test_tensors_arrive_where_they_belong(tmp_path: Path, case: str) -> None:
    model = replace(TINY_CASES[case], vocab_size=512)
    weights = imported(make_hf_directory(tmp_path / "source", model, 5), tmp_path / "bundle")
    expected = tiny_weights(model, 5)
    assert weights.keys() == expected.keys()
    for name, values in weights.items():
        assert np.array_equal(values, expected[name]), name


def test_a_norm_in_sixteen_bits_gets_its_one_in_thirty_two(tmp_path: Path) -> None:
    """1 + w is not rounded to what w was stored in."""
    source = make_hf_directory(tmp_path / "source", replace(TINY_CASES["gemma2"], vocab_size=512), 5)
    tensors = load_file(source / "model.safetensors")
    small = np.full(64, 2**-20, np.float16)
    save_file(tensors | {"model.norm.weight": small}, source / "model.safetensors")
    assert (imported(source, tmp_path / "bundle")["norm.weight"] == np.float32(1 + 2**-20)).all()


@pytest.mark.parametrize(
    ("name", "rows", "fault"),
    [
        ("model.layers.0.self_attn.qkv_proj.weight", 127, "shape [127, 64], the model needs 128 rows"),
        ("model.layers.1.mlp.gate_up_proj.weight", 255, "shape [255, 64], the model needs 256 rows"),
        (
            "model.layers.2.mlp.gate_up_proj.weight",
            256,
            "layers.2.mlp.gate_up_proj.weight has shape [256, 64], the model needs 0 rows",
        ),
        ("model.layers.0.self_attn.q_proj.weight", 64, "is given twice"),
    ],
)
def test_fused_tensors_of_another_shape_are_refused(tmp_path: Path, name: str, rows: int, fault: str) -> None:
    source = make_hf_directory(tmp_path / "source", replace(TINY_CASES["phi3"], vocab_size=512))
    tensors = load_file(source / "model.safetensors")
    save_file(tensors | {name: np.zeros((rows, 64), np.float32)}, source / "model.safetensors")
    with pytest.raises(CatalogError) as rejected:
        import_bundle(source, tmp_path / "bundle", Wanted(), TEST_KEY)
    assert fault in str(rejected.value)


@pytest.mark.parametrize("prefix", ["language_model.model.", "model.language_model."])
def test_the_text_part_is_found_among_the_tensors_of_the_whole(tmp_path: Path, prefix: str) -> None:
    model = replace(TINY_CASES["gemma3"], vocab_size=512)
    source = make_hf_directory(tmp_path / "source", model, 5)
    text = json.loads((source / "config.json").read_text())
    change_json(
        source / "config.json",
        model_type="gemma3",
        architectures=["Gemma3ForConditionalGeneration"],
        text_config=text,
        vision_config={"hidden_size": 32},
    )
    tensors = load_file(source / "model.safetensors")
    whole = {prefix + name.removeprefix("model."): values for name, values in tensors.items()}
    whole |= {f"{before}tower.weight": np.ones(3, np.float32) for before in ("vision_tower.", "model.vision_tower.")}
    whole["multi_modal_projector.weight"] = np.ones((2, 2), np.int8)
    save_file(whole, source / "model.safetensors")
    weights = imported(source, tmp_path / "bundle")
    assert all(np.array_equal(values, weights[name]) for name, values in tiny_weights(model, 5).items())
