"""`token_bytes.bin`: the bytes that each token id stands for, for the runtime, which matches stop strings over bytes
and has no use for a tokenizer. `bundling` writes it; ids that spell nothing (control tokens) have no bytes.

    count: u32   offsets: (count + 1) × u32, from 0, ascending   bytes: offsets[count]        all little-endian
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from tie.catalog.errors import BundleRejected

FILE: Final = "token_bytes.bin"
_COUNT: Final = struct.Struct("<I")


class TokenBytes:
    """Indexed by token id. A table that does not fit the model, or whose offsets do not add up, is refused here."""

    def __init__(self, data: bytes, vocab_size: int) -> None:
        if len(data) < _COUNT.size or _COUNT.unpack_from(data)[0] != vocab_size:
            raise BundleRejected(FILE, f"is not a table of {vocab_size} tokens")
        begin = _COUNT.size + 4 * (vocab_size + 1)
        if len(data) < begin:
            raise BundleRejected(FILE, "ends within its offsets")
        self._offsets = struct.unpack_from(f"<{vocab_size + 1}I", data, _COUNT.size)
        self._bytes = data[begin:]
        pairs = zip(self._offsets, self._offsets[1:], strict=False)
        if self._offsets[0] != 0 or self._offsets[-1] != len(self._bytes) or any(a > b for a, b in pairs):
            raise BundleRejected(FILE, "has offsets that do not ascend from 0 to the end of its bytes")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, token: int) -> bytes:
        return self._bytes[self._offsets[token] : self._offsets[token + 1]]


def render(spellings: Sequence[bytes]) -> bytes:
    """The file that holds these, in the order of their ids."""
    offsets = [0]
    for spelling in spellings:
        offsets.append(offsets[-1] + len(spelling))
    return _COUNT.pack(len(spellings)) + struct.pack(f"<{len(offsets)}I", *offsets) + b"".join(spellings)
