"""Every file of a Hugging Face directory with anything in the place of any of its values: refused or imported."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from doubles.hf_directory import make_hf_directory, write_json
from doubles.tiny_model import DATA, tiny_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tie.bundling.assets_check import check_tokenizer
from tie.bundling.hf_source import open_hugging_face
from tie.catalog.errors import CatalogError

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "x", "BPE", "ByteLevel", "TemplateProcessing", "Sequence", "<|im_end|>", "\ud800"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["type", "content", "ids", "id", "single", "1", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
TOKENIZER = {
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}},
    }
}
CONFIG = {
    "added_tokens_decoder": {"0": {"content": "<unk>"}},
    "eos_token": {"content": "<|im_end|>"},
    "bos_token": "<s>",
}


@pytest.fixture(params=["byte_bpe", "sentencepiece"])
def source(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    source = make_hf_directory(tmp_path / "source", tiny_model(layer_count=1), shards=2)
    if request.param == "sentencepiece":
        (source / "tokenizer.json").unlink()
        (source / "tokenizer.model").write_bytes((DATA / "tiny.model").read_bytes())
        write_json(source / "tokenizer_config.json", CONFIG)
        write_json(source / "added_tokens.json", {"<unk>": 0})
    else:
        write_json(source / "tokenizer.json", json.loads((source / "tokenizer.json").read_text()) | TOKENIZER)
    write_json(source / "special_tokens_map.json", {"eos_token": {"content": "<|im_end|>"}})
    return source


def open_it(source: Path) -> None:
    with open_hugging_face(source) as opened:
        check_tokenizer(opened.tokenizer, opened.model.vocab_size)


def test_the_directory_is_fine_without_damage(source: Path) -> None:
    if (source / "tokenizer.model").exists():
        write_json(source / "special_tokens_map.json", {"eos_token": "</s>"})
    open_it(source)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_no_value_causes_anything_but_a_refusal(source: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(source.glob("*.json"))))
    before = path.read_bytes()
    values = json.loads(before)
    replace_somewhere(values, data)
    path.write_text(json.dumps(values))
    try:
        with suppress(CatalogError):
            open_it(source)
    finally:
        path.write_bytes(before)


def replace_somewhere(values: Any, data: st.DataObject) -> None:
    """Anywhere but in the long lists and tables, where one place is like another."""
    keys = list(range(len(values)))[:4] if isinstance(values, list) else sorted(values)[:40]
    key = data.draw(st.sampled_from(keys)) if keys else None
    if key is None:
        return
    inner = values[key]
    if isinstance(inner, dict | list) and inner and data.draw(st.booleans()):
        replace_somewhere(inner, data)
    else:
        values[key] = data.draw(VALUES)
