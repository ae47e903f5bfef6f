import json
import re
import tomllib
from contextlib import suppress
from typing import Any

import pytest
from doubles.golden import TINY_CASES
from doubles.tiny_model import tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.bundling.toml import render_description
from tie.catalog.attention import AttentionKind
from tie.catalog.description import (
    MAX_BYTES,
    BundleDescription,
    KvDescription,
    ModelDescription,
    TokenizerDescription,
    parse_description,
    parse_model,
)
from tie.catalog.errors import BundleRejected
from tie.catalog.rope import LinearScaling, Rope


def described(model: ModelDescription | None = None) -> BundleDescription:
    tokenizer = TokenizerDescription("byte_bpe", 1, False, (2, 0))
    return BundleDescription("tiny", "1", model or tiny_model(), tokenizer, "chat", KvDescription(16, "bf16"))


def rendered(model: ModelDescription | None = None) -> str:
    return render_description(described(model)).decode()


FLAGS = ("tied_embeddings", "qkv_bias", "output_bias", "mlp_bias", "qk_norm", "post_norms")
MIXED = tiny_model(
    head_dim=32,
    attention={
        "local": AttentionKind(window=8, rope=Rope(10_000.0, 16)),
        "global": AttentionKind(rope=Rope(1e6, 32, LinearScaling(8.0))),
        "blind": AttentionKind(),
    },
    layer_count=6,
    layer_pattern=("local", "local", "global", "blind"),
    activation="gelu_tanh",
    embedding_scale=8.0,
    attention_scale=0.25,
    attention_softcap=50.0,
    logit_softcap=30.0,
    **dict.fromkeys(FLAGS, True),
)
LLAMA3 = rendered(TINY_CASES["llama3"])
YARN = rendered(TINY_CASES["yarn"])


def with_line(text: str, key: str, line: str) -> bytes:
    replaced, count = re.subn(rf"(?m)^{key} = .*$", line, text, count=1)
    assert count == 1, f"the file has {key}"
    return replaced.encode()


@pytest.mark.parametrize(
    ("key", "line", "fault"),
    [
        ("format", "format = 2", "format is outside 1..1"),
        ("format", "format = true", "format must be an integer"),
        ("format", "", "format is missing"),
        ("name", 'name = "Tiny"', "name must be a string that matches"),
        ("name", 'name = "../tiny"', "name must be a string that matches"),
        ("name", f'name = "{"a" * 65}"', "name must be a string that matches"),
        ("release", "release = 1", "release must be a string"),
        ("layout", 'layout = "rows-2"', "model.layout must be one of panels-1"),
        ("layout", 'layout = "rows-1"', "model.layout is rows-1, which is read no more: import the model again"),
        ("dtype", 'dtype = "f16"', "model.dtype must be one of"),
        ("hidden_size", "hidden_size = 0", "model.hidden_size is outside 1..65536"),
        ("hidden_size", "hidden_size = 64.0", "model.hidden_size must be an integer"),
        ("hidden_size", "hidden_size = 64\nhidden_sizes = 64", "model.hidden_sizes is not known"),
        ("layer_count", "layer_count = 9223372036854775807", "model.layer_count is outside"),
        ("query_heads", "query_heads = 5", "query_heads is 5, not a multiple of kv_heads 2"),
        ("vocab_size", "vocab_size = -1", "model.vocab_size is outside"),
        ("norm_eps", "norm_eps = nan", "model.norm_eps is outside"),
        ("norm_eps", "norm_eps = inf", "model.norm_eps is outside"),
        ("norm_eps", 'norm_eps = "1e-5"', "model.norm_eps must be a number"),
        ("tied_embeddings", "tied_embeddings = 0", "model.tied_embeddings must be true or false"),
        ("activation", 'activation = "relu"', "model.activation must be one of silu, gelu_tanh"),
        ("activation", "", "model.activation is missing"),
        *((flag, "", f"model.{flag} is missing") for flag in FLAGS),
        *((flag, f"{flag} = 1", f"model.{flag} must be true or false") for flag in FLAGS),
        ("qkv_bias", "qkv_bias = false\nattention_bias = false", "model.attention_bias is not known"),
        ("layer_pattern", "", "model.layer_pattern is missing"),
        ("layer_pattern", "layer_pattern = []", "model.layer_pattern must be a list of 1..2 strings"),
        ("layer_pattern", 'layer_pattern = "global"', "model.layer_pattern must be a list of 1..2 strings"),
        ("layer_pattern", f"layer_pattern = {['global'] * 3}", "model.layer_pattern must be a list of 1..2 strings"),
        ("layer_pattern", "layer_pattern = [1]", "layer_pattern holds something other than strings that match"),
        ("layer_pattern", 'layer_pattern = ["Global"]', "layer_pattern holds something other than strings that match"),
        ("layer_pattern", 'layer_pattern = ["global", "far"]', "layer_pattern names far, which is not among the kinds"),
        ("theta", "theta = 0.0", "model.attention.global.rope.theta is outside"),
        ("rotary_dim", "rotary_dim = 18", "model.attention.global.rope.rotary_dim is outside 2..16"),
        ("rotary_dim", "rotary_dim = 7", "model.attention.global.rope.rotary_dim is 7, not even"),
        ("kind", 'kind = "dynamic"', "model.attention.global.rope.scaling.kind must be one of"),
        ("kind", 'kind = "none"\nfactor = 2.0', "model.attention.global.rope.scaling.factor is not known"),
        ("file", 'file = "tokenizer.model"', "tokenizer.file must be one of tokenizer.json"),
        ("bos_token_id", "bos_token_id = 512", "tokenizer.bos_token_id is outside 0..511"),
        ("bos_token_id", "add_bos = true", "add_bos is true, but there is no bos_token_id"),
        ("eos_token_ids", "eos_token_ids = []", "tokenizer.eos_token_ids must be a list of 1..32"),
        ("eos_token_ids", "eos_token_ids = [2, 2]", "tokenizer.eos_token_ids holds a value twice"),
        ("eos_token_ids", "eos_token_ids = [true]", "tokenizer.eos_token_ids holds something other"),
        ("eos_token_ids", "eos_token_ids = [512]", "tokenizer.eos_token_ids holds something other"),
        ("template", 'template = "../chat"', "chat.template must be a string that matches"),
        ("block_size_tokens", "block_size_tokens = 24", "kv.block_size_tokens is 24, not a power of two"),
    ],
)
def test_a_wrong_key_is_refused_by_name(key: str, line: str, fault: str) -> None:
    text = rendered()
    if key == "bos_token_id" and line.startswith("add_bos"):
        text = text.replace("add_bos = false\n", "")
    with pytest.raises(BundleRejected) as rejected:
        parse_description(with_line(text, key, line))
    assert rejected.value.file == "bundle.toml"
    assert fault in rejected.value.fault


@pytest.mark.parametrize(
    ("text", "key", "line", "fault"),
    [
        (LLAMA3, "factor", "factor = 0.5", "factor is outside"),
        (LLAMA3, "high_freq_factor", "high_freq_factor = 1.0", "high_freq_factor is not above low_freq_factor"),
        (LLAMA3, "original_context_length", "", "original_context_length is missing"),
        (YARN, "beta_fast", "beta_fast = 0.0", "beta_fast is outside"),
        (YARN, "beta_slow", "low_freq_factor = 1.0", "beta_slow is missing"),
        (rendered(MIXED), "window", "window = 0", "model.attention.local.window is outside 1..16777216"),
        (rendered(MIXED), "window", "window = 8.0", "model.attention.local.window must be an integer"),
        (rendered(MIXED), "window", "windows = 8", "model.attention.local.windows is not known"),
        (rendered(MIXED), "layer_pattern", 'layer_pattern = ["local", "global"]', "does not use blind"),
        (rendered(MIXED), "rotary_dim", "rotary_dim = 34", "model.attention.local.rope.rotary_dim is outside 2..32"),
        (rendered(MIXED), "embedding_scale", "embedding_scale = 0.0", "embedding_scale is outside 1e-06..1e+06"),
        (rendered(MIXED), "attention_scale", "attention_scale = -1.0", "attention_scale is outside"),
        (rendered(MIXED), "attention_softcap", "attention_softcap = inf", "attention_softcap is outside"),
        (rendered(MIXED), "logit_softcap", "logit_softcap = true", "logit_softcap must be a number"),
    ],
)
def test_a_wrong_kind_of_attention_is_refused(text: str, key: str, line: str, fault: str) -> None:
    with pytest.raises(BundleRejected, match=re.escape(fault)):
        parse_description(with_line(text, key, line))


@pytest.mark.parametrize(
    "kinds",
    [{}, {f"k{n}": {} for n in range(9)}, {"Local": {}}, {"a.b": {}}, {"a" * 33: {}}, {"1": {}}, {"": {}}],
)
def test_kinds_of_attention_are_few_and_plainly_named(kinds: dict[str, Any]) -> None:
    table = tiny_model().to_table() | {"attention": kinds, "layer_pattern": ["global"]}
    with pytest.raises(BundleRejected, match=r"key model\.attention must hold 1\.\.8 tables with names that match"):
        parse_model(table)
    with pytest.raises(BundleRejected, match=r"key model\.attention\.global must be a table"):
        parse_model(table | {"attention": {"global": 1}})


def test_a_bundle_of_the_former_layout_is_told_to_be_imported_again() -> None:
    former = {"layout": "rows-1", "attention_bias": False, "rope": {"theta": 1e4, "rotary_dim": 16}}
    table = {key: value for key, value in tiny_model().to_table().items() if key not in ("attention", "qkv_bias")}
    with pytest.raises(BundleRejected, match="layout is rows-1, which is read no more: import the model again"):
        parse_model(table | former)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"format = ", b"a = 1\na = 2", b"[" * 5000, b"x = " + b"[" * 5000, b"format = 1" + b"0" * 5000],
)
def test_what_is_no_toml_or_no_description_is_refused(data: bytes) -> None:
    with pytest.raises(BundleRejected, match=r"bundle\.toml: "):
        parse_description(data)


def test_an_oversized_description_is_refused_unparsed() -> None:
    with pytest.raises(BundleRejected, match=f"is {MAX_BYTES + 1} bytes, more than {MAX_BYTES}"):
        parse_description(b"#" * (MAX_BYTES + 1))


def test_an_unknown_key_is_shown_only_if_it_is_plain() -> None:
    with pytest.raises(BundleRejected, match="key of 12 characters is not known"):
        parse_description((b'"secret\\u0000stuff" = 1\n') + rendered().encode())


@pytest.mark.parametrize("model", [*TINY_CASES.values(), MIXED], ids=[*TINY_CASES, "mixed"])
def test_a_description_survives_writing_and_reading(model: ModelDescription) -> None:
    described_model = described(model)
    assert parse_description(render_description(described_model)) == described_model
    assert parse_model(json.loads(model.to_json())) == model


def test_bones_gets_the_model_table_as_it_stands_in_the_file() -> None:
    for model, text in ((TINY_CASES["yarn"], YARN), (MIXED, rendered(MIXED))):
        table: dict[str, Any] = tomllib.loads(text)["model"]
        assert model.to_table() == json.loads(model.to_json()) == table
    assert table["attention"] == {
        "local": {"window": 8, "rope": {"theta": 10_000.0, "rotary_dim": 16, "scaling": {"kind": "none"}}},
        "global": {"rope": {"theta": 1e6, "rotary_dim": 32, "scaling": {"kind": "linear", "factor": 8.0}}},
        "blind": {},
    }


def test_what_is_not_set_is_left_out() -> None:
    table = tiny_model().to_table()
    assert not {"embedding_scale", "attention_scale", "attention_softcap", "logit_softcap"} & table.keys()
    assert table["layer_pattern"] == ["global"]
    assert table["attention"].keys() == {"global"}
    assert "window" not in table["attention"]["global"]
    assert "attention_factor" not in TINY_CASES["yarn"].to_table()["attention"]["global"]["rope"]["scaling"]


def test_the_pattern_repeats_over_the_layers() -> None:
    windows = [MIXED.kind_of(layer).window for layer in range(MIXED.layer_count)]
    assert windows == [8, 8, None, None, 8, 8]
    assert [MIXED.kind_of(layer).rope is None for layer in range(6)] == [False, False, False, True, False, False]


def test_scores_are_scaled_by_the_head_unless_told_otherwise() -> None:
    assert (tiny_model().score_scale, MIXED.score_scale) == (0.25, 0.25)
    assert tiny_model(head_dim=64).score_scale == 0.125


@settings(deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_bytes_cause_anything_but_a_refusal(data: bytes) -> None:
    with pytest.raises(BundleRejected):
        parse_description(data)


@settings(deadline=None)
@given(st.data())
def test_no_damage_causes_anything_but_a_refusal(data: st.DataObject) -> None:
    text = bytearray(rendered(MIXED).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BundleRejected):
        parse_description(bytes(text))
