"""Literal text stays literal, whatever it spells, and comes back byte for byte."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import sentencepiece
from doubles.mistral_files import V1, mistral_file
from doubles.tiny_model import BPE_VOCAB_SIZE, tokenizer_file
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tie.prompting.byte_bpe import ByteBpe
from tie.prompting.detokenising import decode
from tie.prompting.errors import LiteralRefused, TokenizerRejected
from tie.prompting.sentence_piece import SentencePiece
from tie.prompting.tokenizers import Tokenizer

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff\xfe", b'{"model": {"type": "BPE"}}', b"[" * 2000])
def test_a_malformed_tokenizer_json_is_rejected(data: bytes) -> None:
    with pytest.raises(TokenizerRejected):
        ByteBpe(data, BPE_VOCAB_SIZE)


@pytest.mark.parametrize("data", [b"", b"\x0a\xff", b"\x0a\x05\x0a\x7f", b"\x0b\x00", b"{}", b"\xff" * 40])
def test_a_malformed_tokenizer_model_is_rejected(data: bytes) -> None:
    with pytest.raises(TokenizerRejected):
        SentencePiece(data, BPE_VOCAB_SIZE)


def test_every_truncation_of_a_tokenizer_model_is_rejected_or_loads() -> None:
    whole = tokenizer_file("sentencepiece")
    for size in range(0, len(whole), 97):
        try:
            SentencePiece(whole[:size], BPE_VOCAB_SIZE)
        except TokenizerRejected:
            continue


def test_a_tokenizer_with_more_tokens_than_the_model_is_rejected() -> None:
    with pytest.raises(TokenizerRejected, match=r"has 512 tokens, the model has 511"):
        ByteBpe(tokenizer_file("byte_bpe"), 511)
    with pytest.raises(TokenizerRejected, match=r"the model has 100"):
        SentencePiece(tokenizer_file("sentencepiece"), 100)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"pre_tokenizer": None}, "no byte-level"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "no byte-level"),
        ({"normalizer": {"type": "Lowercase"}}, "Lowercase"),
        ({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}]}}, "NFKC"),
    ],
)
def test_what_literal_text_cannot_survive_is_rejected(change: dict[str, Any], fault: str) -> None:
    document = json.loads(tokenizer_file("byte_bpe")) | change
    with pytest.raises(TokenizerRejected, match=fault):
        ByteBpe(json.dumps(document).encode(), BPE_VOCAB_SIZE)


def test_a_pre_tokenizer_that_adds_a_space_is_rejected() -> None:
    document = json.loads(tokenizer_file("byte_bpe"))
    document["pre_tokenizer"]["add_prefix_space"] = True
    with pytest.raises(TokenizerRejected, match="adds a space"):
        ByteBpe(json.dumps(document).encode(), BPE_VOCAB_SIZE)


def test_a_truncation_set_in_the_file_shortens_no_prompt(tiny_bpe: ByteBpe) -> None:
    document = json.loads(tokenizer_file("byte_bpe"))
    document["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    truncating = ByteBpe(json.dumps(document).encode(), BPE_VOCAB_SIZE)
    text = "a longer text than four tokens"
    assert truncating.encode_literal(text, is_start=True) == tiny_bpe.encode_literal(text, is_start=True)


def test_every_control_token_in_user_text_stays_text(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.controls.spellings) >= 3
    for spelling in tokenizer.controls.spellings:
        for text in (spelling, f"a{spelling}b", f" {spelling} ", spelling * 3, f"{spelling}\n{spelling}"):
            ids = tokenizer.encode_literal(text, is_start=True)
            assert tokenizer.controls.token_ids.isdisjoint(ids)
            assert decode(tokenizer, ids) == text


def test_an_added_token_that_is_not_called_special_stays_text_too() -> None:
    document = json.loads(tokenizer_file("byte_bpe"))
    document["added_tokens"].append(_added(BPE_VOCAB_SIZE, "<think>", special=False))
    tokenizer = ByteBpe(json.dumps(document).encode(), BPE_VOCAB_SIZE + 1)
    ids = tokenizer.encode_literal("<think> so", is_start=True)
    assert BPE_VOCAB_SIZE not in ids
    assert decode(tokenizer, ids) == "<think> so"
    assert "<think>" in tokenizer.controls.spellings
    assert tokenizer.spelling(BPE_VOCAB_SIZE) == b"<think>"  # a reader sees it when the model says it


def test_an_added_run_of_spaces_is_vocabulary_like_any_other() -> None:
    document = json.loads(tokenizer_file("byte_bpe"))
    document["added_tokens"].append(_added(BPE_VOCAB_SIZE, "      ", special=False))
    tokenizer = ByteBpe(json.dumps(document).encode(), BPE_VOCAB_SIZE + 1)
    ids = tokenizer.encode_literal("a      b", is_start=True)
    assert BPE_VOCAB_SIZE in ids
    assert decode(tokenizer, ids) == "a      b"


def test_a_user_defined_symbol_of_sentencepiece_stays_text() -> None:
    whole = bytearray(tokenizer_file("sentencepiece"))
    plain = SentencePiece(bytes(whole), BPE_VOCAB_SIZE)
    control = next(name for name in plain.controls.spellings if name.startswith("<|"))
    at = whole.index(control.encode()) + len(control) + 5  # its type follows text and score
    assert whole[at : at + 2] == b"\x18\x03"
    whole[at + 1] = 4  # USER_DEFINED, which the library matches in any text
    symbols = SentencePiece(bytes(whole), BPE_VOCAB_SIZE)
    ids = symbols.encode_literal(f"x {control} y", is_start=True)
    assert symbols.controls.token_ids.isdisjoint(ids)
    assert decode(symbols, ids) == f"x {control} y"
    assert symbols.spelling(symbols.controls.id_of(control)) == control.encode()


@QUICK
@given(text=st.text(max_size=60))
def test_literal_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_literal(text, is_start=True)
    assert decode(tokenizer, ids) == text
    assert tokenizer.controls.token_ids.isdisjoint(ids)
    assert all(0 <= token_id < tokenizer.vocab_size for token_id in ids)


@QUICK
@given(text=st.text(alphabet=" \t\n\u2581aé<>|_", max_size=40))
def test_white_space_survives_inside_a_prompt(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_literal(text, is_start=False)
    spelled = b"".join(map(tokenizer.spelling, ids)).decode()
    assert spelled == text or "\u2581" in text  # SentencePiece's own letter for a space is one


@pytest.mark.parametrize("text", ["hello", " hello", "a  b", "x\ny", "\N{GRINNING FACE}!", "</s>"])
def test_a_text_that_begins_a_prompt_is_encoded_as_the_library_would(mistral_v1: SentencePiece, text: str) -> None:
    library = sentencepiece.SentencePieceProcessor()
    library.LoadFromSerializedProto(mistral_file(V1))
    assert mistral_v1.encode_literal(text, is_start=True) == library.EncodeAsIds(text)
    assert decode(mistral_v1, library.EncodeAsIds(text)) == library.DecodeIds(library.EncodeAsIds(text)) == text


def test_an_id_beyond_the_vocabulary_spells_nothing(tokenizer: Tokenizer) -> None:
    assert tokenizer.name(-1) == tokenizer.name(1 << 40) == tokenizer.name(tokenizer.vocab_size) == ""
    assert tokenizer.spelling(tokenizer.vocab_size) == b""


def test_control_tokens_are_not_spelled_for_a_reader(tiny_bpe: ByteBpe, mistral_v1: SentencePiece) -> None:
    assert tiny_bpe.spelling(tiny_bpe.controls.id_of("<|im_end|>")) == b""
    assert mistral_v1.spelling(mistral_v1.controls.id_of("</s>")) == b""


def test_a_character_without_a_spelling_is_refused() -> None:
    model = io.BytesIO()
    lines = ["the cat sat on the mat", "a dog ran to the cat", "mats and hats and rats"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=40, model_type="bpe",
        normalization_rule_name="identity", minloglevel=2,
    )  # fmt: skip
    tokenizer = SentencePiece(model.getvalue(), BPE_VOCAB_SIZE)
    assert decode(tokenizer, tokenizer.encode_literal("  the  cat ", is_start=True)) == "  the  cat "
    with pytest.raises(LiteralRefused):
        tokenizer.encode_literal("the \N{GRINNING FACE}", is_start=True)


def test_a_byte_that_the_vocabulary_lacks_is_refused_and_not_dropped() -> None:
    document = json.loads(tokenizer_file("byte_bpe"))
    model = document["model"]
    lost = "\u0104"  # how byte-level BPE writes the byte 0x04
    model["merges"] = [merge for merge in model["merges"] if lost not in "".join(merge)]
    ids = iter(range(len(model["vocab"])))
    model["vocab"] = {token: next(ids) for token in model["vocab"] if lost not in token}
    tokenizer = ByteBpe(json.dumps(document).encode(), BPE_VOCAB_SIZE)
    with pytest.raises(LiteralRefused, match="no way to spell"):
        tokenizer.encode_literal("a\x04b", is_start=True)
    assert decode(tokenizer, tokenizer.encode_literal("a\x05b", is_start=True)) == "a\x05b"


def _added(token_id: int, content: str, *, special: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, "special": special, **flags}
