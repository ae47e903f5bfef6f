import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles.hf_directory import change_json, make_hf_directory, write_json
from doubles.reference_model import read_weights
from doubles.tiny_model import CHAT_TEMPLATE, DATA, TEST_KEY, TEST_TRUSTED, tiny_model, tiny_weights, tokenizer_file
from safetensors.numpy import load_file, save_file

from tie.bundling.importing import Imported, Wanted, import_bundle
from tie.catalog import Bundle, open_bundle
from tie.catalog.errors import CatalogError
from tie.catalog.rope import Llama3Scaling, Rope

MODEL = tiny_model(layer_count=1)
INDEX = "model.safetensors.index.json"
FIRST = "model-00001-of-00002.safetensors"


def run(source: Path) -> Imported:
    return import_bundle(source, source.parent / "bundle", Wanted(force=True), TEST_KEY)


def imported(source: Path) -> Bundle:
    run(source)
    return open_bundle(source.parent / "bundle", trusted_keys=TEST_TRUSTED)


def refused(source: Path, fault: str) -> None:
    with pytest.raises(CatalogError) as rejected:
        run(source)
    assert fault in str(rejected.value)
    assert [path.name for path in source.parent.iterdir()] == [source.name]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_hf_directory(tmp_path / "source", MODEL)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    return make_hf_directory(tmp_path / "source", MODEL, shards=2)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"model_type": "gemma"}, "key model_type must be one of llama, mistral, qwen2, qwen3, gemma2, gemma3_text"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "key architectures must be ['LlamaForCausalLM']"),
        ({"hidden_act": "gelu"}, "key hidden_act must be one of silu, gelu_pytorch_tanh"),
        ({"attention_bias": 1}, "key attention_bias must be true or false"),
        ({"attention_bias": True}, "has no tensor for layers.0.attn.q.bias"),
        ({"mlp_bias": True}, "has no tensor for layers.0.mlp.gate.bias"),
        ({"layer_types": ["sliding_attention"]}, "key layer_types must be ['full_attention']"),
        ({"pretraining_tp": 2}, "key pretraining_tp must be 1"),
        ({"quantization_config": {"bits": 4}}, "key quantization_config is set"),
        ({"hidden_size": 2**62}, "key hidden_size is outside"),
        ({"hidden_size": -64}, "key hidden_size is outside"),
        ({"hidden_size": 64.5}, "key hidden_size must be an integer"),
        ({"hidden_size": None}, "key hidden_size is missing"),
        ({"num_hidden_layers": 10**30}, "key num_hidden_layers is outside"),
        ({"num_hidden_layers": 2}, "has no tensor for layers.1.attn_norm.weight"),
        ({"num_key_value_heads": 3}, "not a multiple of kv_heads"),
        ({"num_attention_heads": 7, "head_dim": None}, "does not divide hidden_size 64"),
        ({"vocab_size": 513}, "tensor for embed.weight has shape [512, 64]"),
        ({"rms_norm_eps": "1e-5"}, "key rms_norm_eps must be a number"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "key rope_scaling.rope_type must be one of"),
        ({"rope_scaling": {"rope_type": "linear"}}, "key rope_scaling.factor is missing"),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}}, "rope_scaling.type differs"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mscale": 1.0}}, "rope_scaling.mscale is not known"),
        ({"rope_scaling": {}, "rope_parameters": {}}, "rope_scaling is set beside rope_parameters"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor must be 1.0"),
        ({"eos_token_id": "2"}, "key eos_token_id is not a token"),
        ({"eos_token_id": 512}, "names token 512, but the model has a vocabulary of 512"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
    ],
)
def test_a_configuration_that_is_not_ours_is_refused(source: Path, changes: dict[str, Any], fault: str) -> None:
    change_json(source / "config.json", **changes)
    refused(source, fault)


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("config.json", "{", "config.json: is not valid JSON"),
        ("config.json", "[]", "config.json: is not an object"),
        ("config.json", '{"hidden_size": 1, "hidden_size": 2}', "config.json: gives a key twice"),
        ("config.json", '{"a": ' * 100_000, "config.json: is nested too deeply"),
        ("tokenizer.json", "{}", "tokenizer.json: is missing or not byte-level BPE"),
        ("tokenizer.json", '{"model": {"type": "Unigram"}}', "tokenizer.json: is missing or not byte-level BPE"),
        ("tokenizer_config.json", '{"eos_token": "<nothing>"}', "key eos_token is not a token of the tokenizer"),
        ("tokenizer_config.json", '{"bos_token": "<nothing>"}', "key bos_token is not a token of the tokenizer"),
        ("tokenizer_config.json", '{"chat_template": 1}', "key chat_template is neither a template nor a list"),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}', "chat template: is not a valid template"),
        ("tokenizer_config.json", '{"chat_template": [{"name": "rag"}]}', "nor a list with one named default"),
        ("generation_config.json", '{"eos_token_id": [2, -1]}', "generation_config.json: key eos_token_id is not"),
    ],
)
def test_a_malformed_small_file_is_refused(source: Path, file: str, text: str, fault: str) -> None:
    (source / file).write_text(text)
    refused(source, fault)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_refused(source: Path, file: str) -> None:
    (source / file).unlink()
    refused(source, f"{file}: is missing")


def test_a_configuration_without_an_end_is_refused(source: Path) -> None:
    change_json(source / "config.json", eos_token_id=None)
    (source / "generation_config.json").unlink()
    (source / "tokenizer_config.json").unlink()
    refused(source, "config.json: names no token that ends an answer")


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "a/b.safetensors", "..", "", ".hidden", "a\x00b", "a\\b", 1, None]
)
def test_a_shard_outside_the_directory_is_refused(sharded: Path, name: Any) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["lm_head.weight"] = name
    write_json(sharded / INDEX, index)
    refused(sharded, f"{INDEX}: names a file outside its own directory")


def test_an_index_that_does_not_match_its_shards_is_refused(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    held = [name for name, file in index["weight_map"].items() if file == FIRST]
    write_json(sharded / INDEX, {"weight_map": index["weight_map"] | {"more": FIRST}})
    refused(sharded, f"{FIRST}: does not hold exactly the tensors that {INDEX} says")
    fewer = {name: file for name, file in index["weight_map"].items() if name != held[0]}
    write_json(sharded / INDEX, {"weight_map": fewer})
    refused(sharded, f"{FIRST}: does not hold exactly the tensors that {INDEX} says")
    write_json(sharded / INDEX, {"weight_map": {}})
    refused(sharded, f"{INDEX}: has no weight_map")


def test_a_tensor_in_two_shards_is_refused(sharded: Path) -> None:
    second = FIRST.replace("00001", "00002", 1)
    both = load_file(sharded / FIRST) | load_file(sharded / second)
    save_file(both, sharded / second)
    index = json.loads((sharded / INDEX).read_text())["weight_map"]
    write_json(sharded / INDEX, {"weight_map": index | dict.fromkeys(both, second)})
    (sharded / FIRST).unlink()
    save_file({"model.norm.weight": np.ones(64, np.float32)}, sharded / FIRST)
    write_json(sharded / INDEX, {"weight_map": dict.fromkeys(both, second) | {"model.norm.weight": FIRST}})
    refused(sharded, "does not hold exactly")


def test_a_missing_shard_is_refused(sharded: Path) -> None:
    (sharded / FIRST).unlink()
    refused(sharded, f"{FIRST}: cannot be opened: No such file or directory")


def edit(change: Callable[[dict[str, np.ndarray[Any, Any]]], None]) -> Callable[[Path], None]:
    def apply(source: Path) -> None:
        tensors = load_file(source / "model.safetensors")
        change(tensors)
        save_file(tensors, source / "model.safetensors")

    return apply


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda t: t.pop("model.norm.weight"), "has no tensor for norm.weight"),
        (lambda t: t.update(other=np.ones(1, np.float32)), "tensor other is not one that the model family has"),
        (lambda t: t.update({"model.norm.weight": np.ones(63, np.float32)}), "has shape [63], the model needs [64]"),
        (lambda t: t.update({"model.norm.weight": np.ones(64, np.int8)}), "is I8; only F32, F16 and BF16 are imported"),
        (lambda t: t.update({"model.norm.weight": np.full(64, np.nan, np.float32)}), "tensor norm.weight holds NaN"),
    ],
)
def test_weights_of_another_model_are_refused(source: Path, change: Any, fault: str) -> None:
    edit(change)(source)
    refused(source, fault)


def test_truncated_weights_are_refused(source: Path) -> None:
    data = (source / "model.safetensors").read_bytes()
    for length in (0, 7, 100, len(data) - 1):
        (source / "model.safetensors").write_bytes(data[:length])
        refused(source, "model.safetensors: ")


@pytest.mark.parametrize("shards", [1, 2, 3])
@pytest.mark.parametrize("half", [False, True])
def test_numbers_are_kept_as_they_are(tmp_path: Path, shards: int, half: bool) -> None:
    source = make_hf_directory(tmp_path / "source", MODEL, 5, shards=shards, half=half)
    with imported(source) as bundle:
        assert bundle.description.model == MODEL
        for name, values in read_weights(bundle).items():
            expected = tiny_weights(MODEL, 5)[name]
            assert (values == (expected.astype(np.float16) if half and values.ndim == 2 else expected)).all(), name


def test_newer_files_keep_everything_in_rope_parameters(source: Path) -> None:
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 5e5}
    rope["original_max_position_embeddings"] = 64
    change_json(source / "config.json", rope_theta=None, rope_scaling=None, rope_parameters=rope)
    with imported(source) as bundle:
        read = bundle.description.model.kind_of(0).rope
        assert read == Rope(5e5, 16, Llama3Scaling(8.0, 1.0, 4.0, 64))


def test_every_declared_end_is_collected_from_every_file(source: Path) -> None:
    write_json(source / "special_tokens_map.json", {"eos_token": "<|tool|>"})
    change_json(source / "generation_config.json", eos_token_id=1)
    with imported(source) as bundle:
        assert bundle.description.tokenizer.eos_token_ids == (2, 1, 0, 3)
        assert bundle.description.tokenizer.bos_token_id == 1


def test_a_head_that_is_tied_is_left_out_and_said_so(source: Path) -> None:
    change_json(source / "config.json", tie_word_embeddings=True)
    done = run(source)
    assert done.description.model.tied_embeddings
    assert any("lm_head.weight is left out" in note for note in done.notes)


def template_processing(single: list[Any]) -> dict[str, Any]:
    token = {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}
    return {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {"<|im_start|>": token}}


SPECIAL = {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}
SEQUENCE = {"Sequence": {"id": "A", "type_id": 0}}


def test_what_a_tokenizer_adds_by_itself_is_told_in_the_description(source: Path) -> None:
    tokenizer = json.loads(tokenizer_file("byte_bpe"))
    tokenizer["post_processor"] = {"type": "Sequence", "processors": [template_processing([SPECIAL, SEQUENCE])]}
    tokenizer["truncation"] = {"max_length": 8, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    write_json(source / "tokenizer.json", tokenizer)
    with imported(source) as bundle:
        assert bundle.description.tokenizer.add_bos
        kept = json.loads(bundle.read_tokenizer())
        assert kept["post_processor"] is None
        assert kept["truncation"] is None
        assert kept["model"] == tokenizer["model"]


def test_a_tokenizer_that_adds_an_end_is_refused(source: Path) -> None:
    tokenizer = json.loads(tokenizer_file("byte_bpe"))
    tokenizer["post_processor"] = template_processing([SEQUENCE, SPECIAL])
    write_json(source / "tokenizer.json", tokenizer)
    refused(source, "adds tokens other than a beginning-of-sequence token")


def test_a_template_of_its_own_comes_first(source: Path) -> None:
    (source / "chat_template.jinja").write_text("{{ messages }}")
    with imported(source) as bundle:
        assert bundle.template("chat") == "{{ messages }}"


def test_of_several_templates_the_default_is_taken(source: Path) -> None:
    templates = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": CHAT_TEMPLATE}]
    change_json(source / "tokenizer_config.json", chat_template=templates)
    done = run(source)
    assert done.description.chat_template == "chat"
    assert any("1 more chat templates" in note for note in done.notes)


def with_sentencepiece(source: Path) -> Path:
    (source / "tokenizer.json").write_text('{"model": {"type": "BPE", "byte_fallback": true}}')
    (source / "tokenizer.model").write_bytes((DATA / "tiny.model").read_bytes())
    write_json(source / "tokenizer_config.json", {"bos_token": "<s>", "eos_token": "</s>"})
    return source


def test_sentencepiece_is_taken_where_tokenizer_json_is_not_byte_level(source: Path) -> None:
    with imported(with_sentencepiece(source)) as bundle:
        tokenizer = bundle.description.tokenizer
        assert (tokenizer.kind, tokenizer.bos_token_id, tokenizer.add_bos) == ("sentencepiece", 1, True)
        assert bundle.read_tokenizer() == (DATA / "tiny.model").read_bytes()


@pytest.mark.parametrize(
    ("added", "decoder", "fault"),
    [
        ({"<pad>": 512}, {}, "other files add tokens to it, which is not imported"),
        ({}, {"512": {"content": "<pad>"}}, "other files add tokens to it, which is not imported"),
        ({"<pad>": "512"}, {}, "added_tokens.json: has a token whose number is no integer"),
        ({}, {"x": {}}, "added_tokens_decoder is not a table by token"),
    ],
)
def test_tokens_added_beside_sentencepiece_are_refused(
    tmp_path: Path, added: dict[str, Any], decoder: dict[str, Any], fault: str
) -> None:
    source = with_sentencepiece(make_hf_directory(tmp_path / "source", replace(MODEL, vocab_size=514)))
    write_json(source / "added_tokens.json", added)
    change_json(source / "tokenizer_config.json", added_tokens_decoder=decoder)
    refused(source, fault)


def test_added_tokens_that_no_text_can_meet_do_not_matter(tmp_path: Path) -> None:
    """As with Gemma 3: its token for an image is beyond the rows of the smallest model, and within those of others."""
    source = with_sentencepiece(make_hf_directory(tmp_path / "source", replace(MODEL, vocab_size=514)))
    write_json(source / "added_tokens.json", {"<image>": 512, "<more>": 514, "<s>": 1})
    change_json(source / "config.json", image_token_index=512)
    with imported(source) as bundle:
        assert bundle.description.tokenizer.eos_token_ids == (2, 3)


def test_a_broken_sentencepiece_model_is_refused(source: Path) -> None:
    for data in (b"", b"\x00" * 100, b"\xff" * 100, (DATA / "tiny.model").read_bytes()[:1000]):
        (with_sentencepiece(source) / "tokenizer.model").write_bytes(data)
        refused(source, "tokenizer.model: ")


def test_a_cache_of_symlinks_is_followed(source: Path, tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    for path in list(source.iterdir()):
        path.rename(tmp_path / "blobs" / path.name)
        path.symlink_to(tmp_path / "blobs" / path.name)
    with imported(source) as bundle:
        assert bundle.description.model == MODEL
