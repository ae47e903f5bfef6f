"""What a tokenizer is to us: literal text to ids, ids to bytes, and the list of its control tokens.

There is no way to ask one for control tokens in a text: `templates` finds those that a template wrote, and everything
else is encoded by `encode_literal`, which never yields one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tie.catalog import TokenizerDescription
from tie.prompting.controls import Controls


class Tokenizer(Protocol):
    """Immutable once loaded. Not for several threads at a time."""

    @property
    def controls(self) -> Controls: ...

    @property
    def vocab_size(self) -> int:
        """Ids are below this."""

    @property
    def adds_leading_space(self) -> bool:
        """Whether text at a prompt's start is encoded as if a space stood before it; that space is no text."""

    def encode_literal(self, text: str, *, is_start: bool) -> Sequence[int]:
        """Ids of `text` alone; `is_start` when nothing but a beginning-of-sequence token stands before it.

        Never a control token, whatever the text spells. Raises LiteralRefused where the vocabulary cannot do that.
        """

    def spelling(self, token_id: int) -> bytes:
        """The bytes that a token stands for; none for an unknown id and for control tokens that no reader sees."""

    def name(self, token_id: int) -> str:
        """A token's spelling in its vocabulary, as templates write it; empty for an unknown id."""


def load_tokenizer(described: TokenizerDescription, data: bytes, vocab_size: int) -> Tokenizer:
    """The bundle's tokenizer. Raises TokenizerRejected; ids at or beyond `vocab_size` reject it too.

    Imports only the library of the kind at hand: this runs in every request's own process.
    """
    if described.kind == "byte_bpe":
        from tie.prompting.byte_bpe import ByteBpe

        return ByteBpe(data, vocab_size)
    from tie.prompting.sentence_piece import SentencePiece

    return SentencePiece(data, vocab_size)
