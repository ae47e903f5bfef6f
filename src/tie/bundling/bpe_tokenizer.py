"""A `tokenizer.json` for byte-level BPE, from what a GGUF file keeps of one: pieces, their types, merges, and the name
of the rule by which text is cut before merging.

The rule is not in the file, only its name, so each is written down here; a name that is not here is refused, because a
wrong rule gives other tokens than the model was trained on, and nothing would say so.
"""

import json
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Final

from tie.bundling.errors import SourceRejected


class PieceType(IntEnum):
    """As GGUF and SentencePiece number them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


_GPT2_PATTERN: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _cl100k_pattern(digits: str) -> str:
    return (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _byte_level(*, use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


# GGUF's name → steps that cut the text; the last turns bytes into the characters that stand for them.
PRE_TOKENIZERS: Final[Mapping[str, Sequence[dict[str, Any]]]] = {
    "gpt-2": (_byte_level(use_regex=True),),
    "smollm": ({"type": "Digits", "individual_digits": True}, _byte_level(use_regex=True)),
    "llama-bpe": (_split(_cl100k_pattern(r"\p{N}{1,3}")), _byte_level(use_regex=False)),
    "qwen2": (_split(_cl100k_pattern(r"\p{N}")), _byte_level(use_regex=False)),
    "default": (
        _split(r"[\p{P}\$\+<=>\^~\|]+"),
        _split(_GPT2_PATTERN),
        _split(r"\p{N}+"),
        _split("[0-9][0-9][0-9]"),
        _byte_level(use_regex=False),
    ),
}
_NORMALIZED: Final = frozenset({"qwen2"})  # text is brought to NFC first
_WHOLE_WORDS_FIRST: Final = frozenset({"llama-bpe"})  # a word that is a token itself is not merged together


def build_byte_bpe(file: str, pre: str, pieces: Sequence[str], types: Sequence[int], merges: Sequence[str]) -> bytes:
    if pre not in PRE_TOKENIZERS:
        known = ", ".join(PRE_TOKENIZERS)
        raise SourceRejected(file, f"tokenizer.ggml.pre names a rule that is not known; known are {known}")
    vocab = _vocab(file, pieces, types)
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(number, pieces[number], types[number]) for number in _added_numbers(types)],
        "normalizer": {"type": "NFC"} if pre in _NORMALIZED else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": list(PRE_TOKENIZERS[pre])},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": pre in _WHOLE_WORDS_FIRST,
            "vocab": vocab,
            "merges": [_merge(file, number, merge, vocab) for number, merge in enumerate(merges)],
        },
    }
    return json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _vocab(file: str, pieces: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    """Unused pieces are left out: they fill up the matrix, no text has them."""
    vocab: dict[str, int] = {}
    for number, (piece, kind) in enumerate(zip(pieces, types, strict=True)):
        if kind == PieceType.UNUSED:
            continue
        if kind == PieceType.BYTE:
            raise SourceRejected(file, f"token {number} is a byte piece, which byte-level BPE does not have")
        if not piece or piece in vocab:
            raise SourceRejected(file, f"token {number} is empty or given twice")
        vocab[piece] = number
    return vocab


def _added_numbers(types: Sequence[int]) -> list[int]:
    added = (PieceType.CONTROL, PieceType.USER_DEFINED, PieceType.UNKNOWN)
    return [number for number, kind in enumerate(types) if kind in added]


def _added(number: int, piece: str, kind: int) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": number, "content": piece, **flags, "special": kind != PieceType.USER_DEFINED}


def _merge(file: str, number: int, merge: str, vocab: Mapping[str, int]) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if left not in vocab or right not in vocab or left + right not in vocab:
        raise SourceRejected(file, f"merge {number} does not join two tokens into a third")
    return left, right
