"""The runtime's table must spell every token as a request process does."""

from __future__ import annotations

from pathlib import Path

import pytest
from doubles.tiny_model import TEST_TRUSTED, make_tiny_bundle

from tie.bundling.errors import SourceRejected
from tie.bundling.token_bytes import make_token_bytes
from tie.catalog import open_bundle
from tie.catalog.description import TokenizerKind
from tie.prompting.tokenizers import load_tokenizer


@pytest.mark.parametrize("kind", ["byte_bpe", "sentencepiece"])
def test_the_table_spells_as_the_tokenizer_does(tmp_path: Path, kind: TokenizerKind) -> None:
    make_tiny_bundle(tmp_path / "b", seed=1, tokenizer=kind)
    with open_bundle(tmp_path / "b", trusted_keys=TEST_TRUSTED) as bundle:
        table = bundle.token_bytes()
        described = bundle.description
        tokenizer = load_tokenizer(described.tokenizer, bundle.read_tokenizer(), described.model.vocab_size)
    assert table is not None
    assert len(table) == described.model.vocab_size
    assert [table[token] for token in range(len(table))] == [tokenizer.spelling(token) for token in range(len(table))]
    text = "Grüße, 世界 \N{GRINNING FACE}!"
    spelled = b"".join(table[token] for token in tokenizer.encode_literal(text, is_start=True))
    assert spelled.removeprefix(b" ").decode() == text
    for token in described.tokenizer.eos_token_ids:
        assert table[token] == b""


def test_a_tokenizer_that_request_processes_cannot_load_is_refused(tmp_path: Path) -> None:
    described = make_tiny_bundle(tmp_path / "b", seed=1)
    with pytest.raises(SourceRejected, match=r"tokenizer\.json"):
        make_token_bytes(described, b"{}")
