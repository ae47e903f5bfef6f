"""Token bytes as text, as they come: whole characters only, and the same text in the end as if decoded at once.

Bytes that are no UTF-8 become U+FFFD, as `bytes.decode` replaces them; an incomplete character waits for the next
bytes, and at the end becomes exactly one.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Final

from tie.prompting.tokenizers import Tokenizer

_DECODER: Final = codecs.getincrementaldecoder("utf-8")


class Utf8Stream:
    """Bytes in, text out. `end` is called once, and last."""

    def __init__(self, *, drops_leading_space: bool) -> None:
        """`drops_leading_space`: the text begins after the space that the tokenizer puts before any text."""
        self._decoder = _DECODER("replace")
        self._drops_leading_space = drops_leading_space

    def feed(self, data: bytes) -> str:
        return self._decoder.decode(self._begun(data))

    def end(self, data: bytes = b"") -> str:
        return self._decoder.decode(self._begun(data), True)

    def _begun(self, data: bytes) -> bytes:
        if self._drops_leading_space and data:
            self._drops_leading_space = False
            return data.removeprefix(b" ")
        return data


def decode(tokenizer: Tokenizer, token_ids: Iterable[int], *, continues_text: bool = False) -> str:
    """The text of these tokens, at once."""
    stream = Utf8Stream(drops_leading_space=tokenizer.adds_leading_space and not continues_text)
    return stream.end(b"".join(map(tokenizer.spelling, token_ids)))
