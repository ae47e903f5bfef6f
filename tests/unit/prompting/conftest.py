"""Tokenizers of every kind: tiny ones, and Mistral's two sorts of SentencePiece."""

from __future__ import annotations

import pytest
from doubles.mistral_files import V1, V3, VOCAB_SIZE, mistral_file
from doubles.tiny_model import BPE_VOCAB_SIZE, tokenizer_file

from tie.prompting.byte_bpe import ByteBpe
from tie.prompting.sentence_piece import SentencePiece
from tie.prompting.tokenizers import Tokenizer


@pytest.fixture(scope="session")
def tiny_bpe() -> ByteBpe:
    return ByteBpe(tokenizer_file("byte_bpe"), BPE_VOCAB_SIZE)


@pytest.fixture(scope="session")
def tiny_pieces() -> SentencePiece:
    return SentencePiece(tokenizer_file("sentencepiece"), BPE_VOCAB_SIZE)


@pytest.fixture(scope="session")
def mistral_v1() -> SentencePiece:
    """Llama 2's way: control pieces only, byte fallback."""
    return SentencePiece(mistral_file(V1), VOCAB_SIZE)


@pytest.fixture(scope="session")
def mistral_v3() -> SentencePiece:
    """Hundreds of control pieces that are spelled like text."""
    return SentencePiece(mistral_file(V3), VOCAB_SIZE)


@pytest.fixture(scope="session", params=["tiny_bpe", "tiny_pieces", "mistral_v1", "mistral_v3"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    found: Tokenizer = request.getfixturevalue(request.param)
    return found
