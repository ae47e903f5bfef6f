"""Which markers of tool calls are tokens, and which are text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from doubles.tiny_model import BPE_VOCAB_SIZE, make_tiny_bundle, tokenizer_file

from tie.catalog import BundleDescription, BundleRejected
from tie.catalog.tools import ToolsDescription
from tie.cloud_app.warmup import call_form
from tie.prompting.byte_bpe import ByteBpe

TOKENIZER = ByteBpe(tokenizer_file("byte_bpe"), BPE_VOCAB_SIZE)


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> BundleDescription:
    return make_tiny_bundle(Path(tmp_path_factory.mktemp("bundle")) / "tiny")


@pytest.mark.parametrize("spelling", ["<|im_end|>", "<|endoftext|>"])
@pytest.mark.parametrize("key", ["begin", "end"])
def test_a_marker_that_ends_the_answer_is_refused(described: BundleDescription, key: str, spelling: str) -> None:
    tools = replace(ToolsDescription("<|tool|>", "</tool>"), **{key: spelling})
    with pytest.raises(BundleRejected, match=rf"bundle\.toml: key tools\.{key} is a token that ends the answer"):
        call_form(replace(described, tools=tools), TOKENIZER)


def test_a_control_token_goes_by_its_id_and_other_text_by_itself(described: BundleDescription) -> None:
    assert call_form(described, TOKENIZER) is None
    form = call_form(replace(described, tools=ToolsDescription("<|tool|>", "<|tool|>x")), TOKENIZER)
    assert form is not None
    assert (form.begin, form.end) == (TOKENIZER.controls.id_of("<|tool|>"), "<|tool|>x")


def test_a_control_token_that_readers_see_is_text(described: BundleDescription) -> None:
    seen = tokenizer_file("byte_bpe")
    at = seen.index(b'"content":"<|tool|>"')
    seen = seen[:at] + seen[at:].replace(b'"special":true', b'"special":false', 1)
    tokenizer = ByteBpe(seen, BPE_VOCAB_SIZE)
    token_id = tokenizer.controls.id_of("<|tool|>")
    assert tokenizer.spelling(token_id) == b"<|tool|>"
    form = call_form(replace(described, tools=ToolsDescription("<|tool|>", "</tool>")), tokenizer)
    assert form is not None
    assert form.begin == "<|tool|>"
