"""Byte-level BPE, written to be obviously right: what the golden encodings are made with, independent of any library.

Text is cut by the pre-tokenizer's rules, each piece spelled in bytes, and the pair with the lowest merge rank is joined
until none is left. Needs the `regex` package (for `\\p{L}`), which the node does not.
"""

import unicodedata
from itertools import pairwise

import regex

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Applied one after the other, each to the pieces that the one before left.
RULES = {
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "llama-bpe": [CL100K % 3],
    "qwen2": [CL100K % 1],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}


def byte_characters() -> dict[int, str]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + at) for at, byte in enumerate(others)}


def encode(text: str, rule: str, vocab: dict[str, int], merges: list[tuple[str, str]]) -> list[int]:
    """Special tokens' spellings are plain text here."""
    if rule == "qwen2":
        text = unicodedata.normalize("NFC", text)
    pieces = [text] if text else []
    for pattern in RULES[rule]:
        pieces = [part for piece in pieces for part in split(piece, pattern)]
    spelling, ranks = byte_characters(), {pair: rank for rank, pair in enumerate(merges)}
    ids: list[int] = []
    for piece in pieces:
        word = "".join(spelling[byte] for byte in piece.encode())
        parts = [word] if rule == "llama-bpe" and word in vocab else merge(list(word), ranks)
        ids += [vocab[part] for part in parts if part in vocab]
    return ids


def split(text: str, pattern: str) -> list[str]:
    """Matches and what lies between them, in order."""
    parts, end = [], 0
    for match in regex.finditer(pattern, text):
        parts += [text[end : match.start()], match.group()]
        end = match.end()
    return [part for part in [*parts, text[end:]] if part]


def merge(parts: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    while True:
        ranked = [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]
        if not ranked:
            return parts
        _, at = min(ranked)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
