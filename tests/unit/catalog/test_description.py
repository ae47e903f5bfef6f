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
from tie.catalog.description import (
    MAX_BYTES,
    BundleDescription,
    KvDescription,
    ModelDescription,
    TokenizerDescription,
    parse_description,
)
from tie.catalog.errors import BundleRejected


def described(model: ModelDescription | None = None) -> BundleDescription:
    tokenizer = TokenizerDescription("byte_bpe", 1, False, (2, 0))
    return BundleDescription("tiny", "1", model or tiny_model(), tokenizer, "chat", KvDescription(16, "bf16"))


def rendered(model: ModelDescription | None = None) -> str:
    return render_description(described(model)).decode()


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
        ("layout", 'layout = "rows-2"', "model.layout must be one of rows-1"),
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
        ("activation", 'activation = "relu"', "model.activation must be one of silu"),
        ("theta", "theta = 0.0", "model.rope.theta is outside"),
        ("rotary_dim", "rotary_dim = 18", "model.rope.rotary_dim is outside 2..16"),
        ("rotary_dim", "rotary_dim = 7", "model.rope.rotary_dim is 7, not even"),
        ("kind", 'kind = "dynamic"', "model.rope.scaling.kind must be one of"),
        ("kind", 'kind = "none"\nfactor = 2.0', "model.rope.scaling.factor is not known"),
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
    ],
)
def test_a_wrong_rope_scaling_is_refused(text: str, key: str, line: str, fault: str) -> None:
    with pytest.raises(BundleRejected, match=re.escape(fault)):
        parse_description(with_line(text, key, line))


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


@pytest.mark.parametrize("case", TINY_CASES)
def test_a_description_survives_writing_and_reading(case: str) -> None:
    described_model = described(TINY_CASES[case])
    assert parse_description(render_description(described_model)) == described_model


def test_bones_gets_the_model_table_as_it_stands_in_the_file() -> None:
    table: dict[str, Any] = tomllib.loads(YARN)["model"]
    assert TINY_CASES["yarn"].to_table() == table
    assert "attention_factor" not in table["rope"]["scaling"]


@settings(deadline=None)
@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_no_bytes_cause_anything_but_a_refusal(data: bytes) -> None:
    with pytest.raises(BundleRejected):
        parse_description(data)


@settings(deadline=None)
@given(st.data())
def test_no_damage_causes_anything_but_a_refusal(data: st.DataObject) -> None:
    text = bytearray(YARN.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    with suppress(BundleRejected):
        parse_description(bytes(text))
