"""Pieces of a rendered prompt as token ids, and an early end for texts that cannot fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tie.prompting.templates import Piece
from tie.prompting.tokenizers import Tokenizer

_LONG_CHARS: Final = 256 * 1024
_SLICE_CHARS: Final = 32 * 1024


class MoreThanFits(Exception):
    """The pieces come to about `tokens` tokens, far beyond the limit; they were not encoded as a whole."""

    def __init__(self, tokens: int) -> None:
        super().__init__(f"about {tokens} tokens")
        self.tokens = tokens


def encode(tokenizer: Tokenizer, pieces: Sequence[Piece], *, bos_token_id: int | None, limit: int) -> list[int]:
    """Ids of the pieces, in order; there may be more than `limit`.

    A text that begins the prompt, or follows only `bos_token_id`, is encoded as the beginning of a text.
    Raises MoreThanFits where slices of the text come to more than twice `limit`, LiteralRefused.
    """
    _refuse_hopeless(tokenizer, pieces, limit)
    ids: list[int] = []
    for piece in pieces:
        if isinstance(piece, int):
            ids.append(piece)
        else:
            ids += tokenizer.encode_literal(piece, is_start=not ids or ids == [bos_token_id])
    return ids


def _refuse_hopeless(tokenizer: Tokenizer, pieces: Sequence[Piece], limit: int) -> None:
    """Cuts words at the slices' borders, so it only counts roughly; its memory does not grow with the text."""
    texts = [piece for piece in pieces if isinstance(piece, str)]
    chars = sum(map(len, texts))
    if chars <= _LONG_CHARS:
        return
    tokens = done = 0
    for text in texts:
        for start in range(0, len(text), _SLICE_CHARS):
            part = text[start : start + _SLICE_CHARS]
            tokens += len(tokenizer.encode_literal(part, is_start=False))
            done += len(part)
            if tokens > 2 * limit:
                raise MoreThanFits(tokens * chars // done)
