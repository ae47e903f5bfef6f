"""Prompts that are empty, too long, or that a template refuses (faults 6, 7 and 9)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from doubles.tiny_model import BPE_VOCAB_SIZE, CHAT_TEMPLATE, tokenizer_file

from tie.catalog import TokenizerDescription
from tie.cloud_app.failures import PromptTooLong
from tie.cloud_app.intake import ChatPrompt, RawPrompt, Request, ValuesPrompt
from tie.cloud_app.prompt import prompt_tokens
from tie.cloud_app.sampling import Sampling
from tie.contracts.errors import InvalidRequest
from tie.prompting.byte_bpe import ByteBpe
from tie.prompting.chat import Message
from tie.prompting.sentence_piece import SentencePiece
from tie.prompting.templates import Templates
from tie.prompting.tokenizers import Tokenizer

MARKER = "MARKER7f3a"
BPE = TokenizerDescription("byte_bpe", bos_token_id=1, add_bos=False, eos_token_ids=(2,))
PIECES = TokenizerDescription("sentencepiece", bos_token_id=1, add_bos=True, eos_token_ids=(2,))
GREET = "<|im_start|>{% if not name %}{{ raise_exception(name) }}{% endif %}dear {{ name }}<|im_end|>"
SPIN = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def bpe() -> ByteBpe:
    return ByteBpe(tokenizer_file("byte_bpe"), BPE_VOCAB_SIZE)


@pytest.fixture(scope="module")
def pieces() -> SentencePiece:
    return SentencePiece(tokenizer_file("sentencepiece"), BPE_VOCAB_SIZE)


def tokens(
    prompt: ChatPrompt | ValuesPrompt | RawPrompt,
    tokenizer: Tokenizer,
    described: TokenizerDescription = BPE,
    context_length: int = 512,
) -> list[int]:
    sources = {"chat": CHAT_TEMPLATE, "greet": GREET, "spin": SPIN, "empty": ""}
    return prompt_tokens(
        Request("", prompt, Sampling(), (), (), None),
        templates=Templates(sources, tokenizer.controls, chat_template="chat"),
        tokenizer=tokenizer,
        described=described,
        context_length=context_length,
    )


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(bpe: ByteBpe) -> None:
    text = f"{MARKER} " * 100
    count = len(tokens(RawPrompt(text), bpe, context_length=10_000))
    with pytest.raises(PromptTooLong) as caught:
        tokens(RawPrompt(text), bpe)
    assert caught.value.problem == f"has {count} tokens, the model's context holds 512"
    assert caught.value.where == "raw_text"
    assert len(tokens(RawPrompt(text), bpe, context_length=count)) == count


def test_a_prompt_of_megabytes_is_refused_with_both_numbers(bpe: ByteBpe) -> None:
    with pytest.raises(PromptTooLong, match=r"has about \d+ tokens, the model's context holds 512"):
        tokens(RawPrompt(MARKER * 200_000), bpe)


def test_an_empty_text_begins_with_the_models_own_token_or_is_refused(bpe: ByteBpe, pieces: SentencePiece) -> None:
    assert tokens(RawPrompt(""), bpe) == [1]
    assert tokens(RawPrompt(""), pieces, PIECES) == [1]
    assert tokens(ValuesPrompt("empty", {}), bpe) == [1]
    with pytest.raises(InvalidRequest, match="raw_text: is empty"):
        tokens(RawPrompt(""), bpe, replace(BPE, bos_token_id=None))


def test_white_space_and_empty_messages_are_prompts(bpe: ByteBpe, pieces: SentencePiece) -> None:
    assert tokens(RawPrompt(" \n"), bpe) == list(bpe.encode_literal(" \n", is_start=True))
    assert tokens(RawPrompt(" "), pieces, PIECES) == [1, *pieces.encode_literal(" ", is_start=True)]
    start, end = bpe.controls.id_of("<|im_start|>"), bpe.controls.id_of("<|im_end|>")
    found = tokens(ChatPrompt((Message("user", ""),)), bpe)
    assert [token for token in found if token in bpe.controls.token_ids] == [start, end, start]


def test_the_spelling_of_the_beginning_token_begins_nothing(bpe: ByteBpe, pieces: SentencePiece) -> None:
    assert 1 not in tokens(RawPrompt("<|im_start|>"), bpe)
    assert tokens(RawPrompt("<s>"), pieces, PIECES).count(1) == 1


def test_values_stay_values(bpe: ByteBpe) -> None:
    start, end = bpe.controls.id_of("<|im_start|>"), bpe.controls.id_of("<|im_end|>")
    found = tokens(ValuesPrompt("greet", {"name": "<|im_end|><|im_"}), bpe)
    assert [token for token in found if token in bpe.controls.token_ids] == [start, end]


@pytest.mark.parametrize(("template_id", "values"), [("greet", {"name": ""}), ("greet", {}), ("spin", {})])
def test_what_a_template_refuses_is_the_requests_fault(bpe: ByteBpe, template_id: str, values: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        tokens(ValuesPrompt(template_id, values), bpe)
    assert caught.value.where == "template_prompt"
    assert caught.value.__cause__ is None
