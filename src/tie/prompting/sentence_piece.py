"""SentencePiece out of a `tokenizer.model`: what Llama 2, Mistral and Gemma use.

The library finds user-defined symbols in any text and trims white space where the file says so; both would make user
text something else than literal. The file is a protobuf, so both are undone before it is loaded: symbols become control
pieces in place, and a second normaliser message appended to the first overrides two of its fields. The space that the
file may want before a text is put there by `encode_literal`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import sentencepiece

from tie.prompting.controls import Control, Controls
from tie.prompting.errors import LiteralRefused, TokenizerRejected

# Field numbers and values of sentencepiece_model.proto.
_PIECES, _TRAINER, _NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_TYPE = 1, 3
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6
_ADD_DUMMY_PREFIX, _ESCAPE_WHITESPACES = 3, 5
_SPACE_AS_SUFFIX = 24
_LITERAL_NORMALIZER: Final = bytes((_NORMALIZER << 3 | 2, 4, _ADD_DUMMY_PREFIX << 3, 0, 4 << 3, 0))
"""normalizer_spec { add_dummy_prefix: false remove_extra_whitespaces: false }"""
_SCORE_BYTES: Final = 5
_SAYS_NORMAL: Final = bytes((_PIECE_TYPE << 3, _NORMAL))
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"


class SentencePiece:
    """See `tokenizers.Tokenizer`."""

    def __init__(self, data: bytes, vocab_size: int) -> None:
        patched = bytearray(data)
        try:
            found = _read(patched)
            self._library = sentencepiece.SentencePieceProcessor()
            self._library.LoadFromSerializedProto(bytes(patched) + _LITERAL_NORMALIZER)
        except (RuntimeError, ValueError, IndexError) as error:
            raise TokenizerRejected("tokenizer.model is not a SentencePiece model that can be read") from error
        self.vocab_size = int(self._library.GetPieceSize())
        if self.vocab_size > vocab_size:
            raise TokenizerRejected(f"tokenizer.model has {self.vocab_size} pieces, the model has {vocab_size}")
        self.adds_leading_space = found.adds_leading_space
        steering = [token_id for token_id, kind in found.kinds.items() if kind != _BYTE]
        self.controls = Controls(Control(self.name(token_id), token_id) for token_id in steering)
        self._spellings = {token_id: self._special(token_id, kind) for token_id, kind in found.kinds.items()}

    def encode_literal(self, text: str, *, is_start: bool) -> Sequence[int]:
        if not text:
            return []
        ids: list[int] = self._library.EncodeAsIds(f" {text}" if is_start and self.adds_leading_space else text)
        if not self.controls.token_ids.isdisjoint(ids):
            raise LiteralRefused("the model's vocabulary has no way to spell a character of the text")
        return ids

    def spelling(self, token_id: int) -> bytes:
        found = self._spellings.get(token_id)
        if found is None:
            found = self._spellings[token_id] = self.name(token_id).replace(_SPACE, " ").encode("utf-8")
        return found

    def name(self, token_id: int) -> str:
        if not 0 <= token_id < self.vocab_size:
            return ""
        piece: str = self._library.IdToPiece(token_id)
        return piece

    def _special(self, token_id: int, kind: int) -> bytes:
        name = self.name(token_id)
        if kind == _BYTE:
            return bytes((int(name[1:-1], 16),))
        if kind == _UNKNOWN:
            return " \N{DOUBLE QUESTION MARK} ".encode()
        return name.replace(_SPACE, " ").encode("utf-8") if kind == _USER_DEFINED else b""


@dataclass(slots=True)
class _Read:
    """What the file says that matters here."""

    kinds: dict[int, int] = field(default_factory=dict)
    """Of every piece that is not plain text."""
    adds_leading_space: bool = True


def _read(data: bytearray) -> _Read:
    """Also rewrites user-defined symbols, in place, so that no text matches them. Raises ValueError, IndexError."""
    found, token_id = _Read(), 0
    for number, start, end in _fields(data, 0, len(data)):
        if number == _PIECES:
            # nearly all pieces are plain: a text, a score, and perhaps the word that they are plain
            rest = end - start - 2 - data[start + 1]
            if rest != _SCORE_BYTES and not (rest == _SCORE_BYTES + 2 and data[end - 2 : end] == _SAYS_NORMAL):
                _read_piece(data, start, end, token_id, found)
            token_id += 1
        elif number == _NORMALIZER:
            flags = _flags(data, start, end)
            found.adds_leading_space = bool(flags.get(_ADD_DUMMY_PREFIX, 1))
            if not flags.get(_ESCAPE_WHITESPACES, 1):
                raise TokenizerRejected("tokenizer.model does not keep white space")
        elif number == _TRAINER and _flags(data, start, end).get(_SPACE_AS_SUFFIX):
            raise TokenizerRejected("tokenizer.model writes spaces after words")
    return found


def _read_piece(data: bytearray, start: int, end: int, token_id: int, found: _Read) -> None:
    """Symbols that are only white space steer nothing and stay as they are."""
    text, kind_at = b"", None
    for number, at, after in _fields(data, start, end):
        if number == _PIECE_TEXT:
            text = bytes(data[at:after])
        elif number == _PIECE_TYPE:
            kind_at = at
    kind = _NORMAL if kind_at is None else data[kind_at]
    is_symbol = kind == _USER_DEFINED and text.decode("utf-8").replace(_SPACE, " ").strip() != ""
    if kind_at is not None and is_symbol:
        data[kind_at] = _CONTROL
    if is_symbol or kind in (_UNKNOWN, _CONTROL, _BYTE):
        found.kinds[token_id] = kind


def _flags(data: bytearray, start: int, end: int) -> dict[int, int]:
    """First byte of each field that has one."""
    return {number: data[at] for number, at, after in _fields(data, start, end) if after > at}


def _fields(data: bytearray, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Fields of a protobuf message, each with the place of its value. Raises ValueError past the end."""
    at = start
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == 2:
            length, at = _varint(data, at)
            after = at + length
        elif kind in (1, 5):
            after = at + (8 if kind == 1 else 4)
        elif kind == 0:
            _, after = _varint(data, at)
        else:
            raise ValueError("a group in a SentencePiece model")
        if after > end:
            raise ValueError("a field that ends beyond its message")
        yield tag >> 3, at, after
        at = after


def _varint(data: bytearray, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number that is too long")
