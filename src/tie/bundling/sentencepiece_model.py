"""A SentencePiece `tokenizer.model`, rebuilt from what a GGUF file keeps of one: pieces, scores, types, settings.

The file is a protobuf message. The generated code that the sentencepiece package ships wants a newer protobuf runtime
than the rest of the node can use, and the few fields needed are quickly written by hand.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tie.bundling.bpe_tokenizer import PieceType

# Field numbers of sentencepiece_model.proto, by message.
_MODEL_PIECES, _MODEL_TRAINER, _MODEL_NORMALIZER = 1, 2, 3
_PIECE_TEXT, _PIECE_SCORE, _PIECE_TYPE = 1, 2, 3
_TRAINER_TYPE, _TRAINER_VOCAB_SIZE, _TRAINER_BYTE_FALLBACK = 3, 4, 35
_TRAINER_UNK_ID, _TRAINER_BOS_ID, _TRAINER_EOS_ID, _TRAINER_PAD_ID = 40, 41, 42, 43
_TRAINER_UNK_PIECE, _TRAINER_BOS_PIECE, _TRAINER_EOS_PIECE = 45, 46, 47
_NORMALIZER_NAME, _NORMALIZER_DUMMY_PREFIX, _NORMALIZER_REMOVE_EXTRA, _NORMALIZER_ESCAPE = 1, 3, 4, 5
_BPE: Final = 2
_VARINT, _BYTES, _FIXED32 = 0, 2, 5


@dataclass(frozen=True, slots=True)
class SentencePieceSettings:
    bos_token_id: int | None
    eos_token_id: int | None
    unknown_token_id: int
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool


def build_sentencepiece(
    pieces: Sequence[str], scores: Sequence[float], types: Sequence[int], settings: SentencePieceSettings
) -> bytes:
    listed = b"".join(
        _bytes(_MODEL_PIECES, _piece(piece, score, kind))
        for piece, score, kind in zip(pieces, scores, types, strict=True)
    )
    trainer = _trainer(pieces, PieceType.BYTE in types, settings)
    return listed + _bytes(_MODEL_TRAINER, trainer) + _bytes(_MODEL_NORMALIZER, _normalizer(settings))


def _piece(piece: str, score: float, kind: int) -> bytes:
    return (
        _bytes(_PIECE_TEXT, piece.encode("utf-8"))
        + _tag(_PIECE_SCORE, _FIXED32)
        + struct.pack("<f", score)
        + _integer(_PIECE_TYPE, kind)
    )


def _trainer(pieces: Sequence[str], has_bytes: bool, settings: SentencePieceSettings) -> bytes:
    fields = [
        _integer(_TRAINER_TYPE, _BPE),
        _integer(_TRAINER_VOCAB_SIZE, len(pieces)),
        _integer(_TRAINER_BYTE_FALLBACK, has_bytes),
        _integer(_TRAINER_UNK_ID, settings.unknown_token_id),
        _bytes(_TRAINER_UNK_PIECE, pieces[settings.unknown_token_id].encode("utf-8")),
        _integer(_TRAINER_PAD_ID, -1),
    ]
    for token, id_field, piece_field in (
        (settings.bos_token_id, _TRAINER_BOS_ID, _TRAINER_BOS_PIECE),
        (settings.eos_token_id, _TRAINER_EOS_ID, _TRAINER_EOS_PIECE),
    ):
        fields.append(_integer(id_field, -1 if token is None else token))
        if token is not None:
            fields.append(_bytes(piece_field, pieces[token].encode("utf-8")))
    return b"".join(fields)


def _normalizer(settings: SentencePieceSettings) -> bytes:
    return (
        _bytes(_NORMALIZER_NAME, b"identity")
        + _integer(_NORMALIZER_DUMMY_PREFIX, settings.add_dummy_prefix)
        + _integer(_NORMALIZER_REMOVE_EXTRA, settings.remove_extra_whitespaces)
        + _integer(_NORMALIZER_ESCAPE, True)
    )


def _tag(field: int, wire_type: int) -> bytes:
    return _varint(field << 3 | wire_type)


def _integer(field: int, value: int) -> bytes:
    return _tag(field, _VARINT) + _varint(value)


def _bytes(field: int, data: bytes) -> bytes:
    return _tag(field, _BYTES) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1  # a negative number is written as its two's complement
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
