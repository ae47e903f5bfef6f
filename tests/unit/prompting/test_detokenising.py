"""Characters are never split, and the sum of the parts is the whole (faults 1 and 3)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import sentencepiece
from doubles.mistral_files import V1, mistral_file
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tie.prompting.byte_bpe import ByteBpe
from tie.prompting.detokenising import Utf8Stream, decode
from tie.prompting.sentence_piece import SentencePiece
from tie.prompting.tokenizers import Tokenizer

FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
CHARACTERS = ["\u010f", "\u7d22", "\U0001f600", FAMILY, "\u0439\u0306", "\ufffd"]
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
QUICK = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def streamed(tokenizer: Tokenizer, ids: Sequence[int], per_step: int = 1) -> list[str]:
    stream = Utf8Stream(drops_leading_space=tokenizer.adds_leading_space)
    steps = [ids[at : at + per_step] for at in range(0, len(ids), per_step)]
    return [*(stream.feed(b"".join(map(tokenizer.spelling, step))) for step in steps), stream.end()]


def byte_tokens(tokenizer: Tokenizer, text: str) -> list[int]:
    """`text` in tokens of one byte each."""
    by_byte = {tokenizer.spelling(token_id): token_id for token_id in reversed(range(tokenizer.vocab_size))}
    return [by_byte[bytes((byte,))] for byte in text.encode()]


@pytest.mark.parametrize("character", CHARACTERS)
def test_a_character_in_byte_tokens_comes_whole(tokenizer: Tokenizer, character: str) -> None:
    ids = byte_tokens(tokenizer, f"a{character}b{character}")
    deltas = streamed(tokenizer, ids)
    assert "".join(deltas) == f"a{character}b{character}" == decode(tokenizer, ids)
    if character != REPLACEMENT:
        assert not any(REPLACEMENT in delta for delta in deltas)


@pytest.mark.parametrize("character", ["\u010f", "\u7d22", "\U0001f600"])
def test_an_end_inside_a_character_is_one_replacement_once(tiny_bpe: ByteBpe, character: str) -> None:
    whole = byte_tokens(tiny_bpe, f"x{character}")
    for cut in range(2, len(whole)):
        deltas = streamed(tiny_bpe, whole[:cut])
        assert deltas[-1] == REPLACEMENT
        assert "".join(deltas) == f"x{REPLACEMENT}" == decode(tiny_bpe, whole[:cut])


@pytest.mark.parametrize(
    "broken", [b"\xff", b"\xc3(", b"\xe7\xb4A", b"\xf0\x9f\x98\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"\xc0\x80"]
)
def test_bytes_that_are_no_characters_are_replaced_as_at_once(broken: bytes) -> None:
    stream = Utf8Stream(drops_leading_space=False)
    parts = [stream.feed(bytes((byte,))) for byte in broken]
    assert "".join([*parts, stream.end()]) == broken.decode("utf-8", "replace")


@QUICK
@given(data=st.data(), per_step=st.integers(1, 7))
def test_deltas_add_up_to_the_whole(tokenizer: Tokenizer, data: st.DataObject, per_step: int) -> None:
    """Random tokens: control tokens in the middle, broken characters, runs of white space."""
    spaces = tokenizer.encode_literal(" ", is_start=False)
    dots = tokenizer.encode_literal("    .", is_start=False)
    often = [*spaces, *dots, *sorted(tokenizer.controls.token_ids)[:8]]
    token = st.integers(0, tokenizer.vocab_size - 1) | st.sampled_from(often)
    ids = data.draw(st.lists(token, max_size=40))
    assert "".join(streamed(tokenizer, ids, per_step)) == decode(tokenizer, ids)


@pytest.mark.parametrize("text", [" .", "    return x .", "a  \n\t .", "  ", "\u00a0.", "x\n\n\n  ."])
def test_white_space_before_a_stop_stays(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode_literal(text, is_start=True)
    for per_step in range(1, 4):
        assert "".join(streamed(tokenizer, ids, per_step)) == text


def test_the_space_before_a_first_word_is_no_text_but_may_continue_one(mistral_v1: SentencePiece) -> None:
    ids = mistral_v1.encode_literal("Paris is", is_start=True)
    assert decode(mistral_v1, ids) == "Paris is"
    assert decode(mistral_v1, ids, continues_text=True) == " Paris is"


def test_only_the_first_space_is_dropped_and_a_control_token_before_it_does_not_count(
    mistral_v1: SentencePiece,
) -> None:
    begin = mistral_v1.controls.id_of("<s>")
    ids = [begin, *mistral_v1.encode_literal("a", is_start=True), begin, *mistral_v1.encode_literal("b", is_start=True)]
    assert decode(mistral_v1, ids) == "a b"


@QUICK
@given(text=st.text(alphabet="ab .\n\u010f\u7d22\U0001f600", max_size=30))
def test_a_whole_text_is_decoded_as_the_library_does(mistral_v1: SentencePiece, text: str) -> None:
    library = sentencepiece.SentencePieceProcessor()
    library.LoadFromSerializedProto(mistral_file(V1))
    ids = library.EncodeAsIds(text)
    assert decode(mistral_v1, ids) == library.DecodeIds(ids)


def test_a_character_is_shown_as_soon_as_it_is_whole() -> None:
    stream = Utf8Stream(drops_leading_space=False)
    shown = [stream.feed(bytes((byte,))) for byte in "\u7d22a".encode()]
    assert shown == ["", "", "\u7d22", "a"]
    assert [len(b) - len(a) for a, b in pairwise(["", "\u7d22", "\u7d22a"])] == [1, 1]
