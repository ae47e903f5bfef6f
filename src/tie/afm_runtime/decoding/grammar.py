"""Executes grammars: which tokens may come next, and whether an answer is complete.

A grammar arrives as the text form that the app compiled and tried; it is built here under the same budget, off the
engine's thread. What exceeds the budget later, in the middle of an answer, ends that request alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from tie.afm_runtime.decoding.stops import TokenBytes
from tie.afm_runtime.forwarding import Mask
from tie.constraints.budget import parser_limits

if TYPE_CHECKING:
    from llguidance._tokenizer import TokenizerWrapper

_WORD_BITS: Final = 32


class GrammarFault(Exception):
    """It cannot be built, or exceeded its budget."""


class Vocabulary:
    """What every token spells, as the matcher needs it: built once, some hundred milliseconds."""

    def __init__(self, token_bytes: TokenBytes, vocab_size: int, eos_ids: Collection[int]) -> None:
        spellings = [token_bytes[token] for token in range(vocab_size)]
        self.words: Final = -(-vocab_size // _WORD_BITS)
        self._tokenizer: Final = LLTokenizer(
            cast("TokenizerWrapper", _Spellings(spellings, sorted(eos_ids))), vocab_size, sorted(eos_ids)
        )

    def matcher(self, compiled: str) -> Matcher:
        """Raises GrammarFault."""
        return Matcher(LLMatcher(self._tokenizer, compiled, log_level=0, limits=parser_limits()), self.words)


class Matcher:
    """Follows one choice. Feed it every token, in order."""

    def __init__(self, matcher: LLMatcher, words: int) -> None:
        self._matcher = matcher
        self._words = words
        self._check()

    def copy(self) -> Matcher:
        """Another choice's, in the same state."""
        return Matcher(self._matcher.deep_copy(), self._words)

    @property
    def is_complete(self) -> bool:
        """Whether the answer satisfies the grammar and nothing can be added."""
        return bool(self._matcher.is_stopped())

    def allowed(self) -> Mask:
        """What may come next; the GIL is free meanwhile. Raises GrammarFault."""
        mask = np.zeros(self._words, np.uint32)
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        self._check()
        return mask

    def feed(self, token: int) -> None:
        """Raises GrammarFault for a token that was not allowed."""
        self._matcher.consume_token(token)
        self._check()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise GrammarFault  # its own message could quote


class _Spellings:
    """The attributes that the matcher's library reads from a tokenizer."""

    is_tokenizer_wrapper: Final = True
    bos_token_id: Final = None

    def __init__(self, tokens: Sequence[bytes], eos_ids: Sequence[int]) -> None:
        self.eos_token_id = eos_ids[0]
        self.tokens = [spelling or b"\xff<%d>" % token for token, spelling in enumerate(tokens)]
        self._ids = {spelling: token for token, spelling in enumerate(tokens) if spelling}
        self._longest = max(map(len, self._ids))
        self.special_token_ids = [token for token, spelling in enumerate(tokens) if not spelling]

    def __call__(self, text: str | bytes) -> list[int]:
        """The longest token first. Where a grammar leaves no choice of text, the answer is spelt like this."""
        rest, ids = text.encode("utf-8") if isinstance(text, str) else text, []
        while rest:
            end = next((end for end in range(min(len(rest), self._longest), 0, -1) if rest[:end] in self._ids), 0)
            if not end:
                raise ValueError("no token spells this")
            ids.append(self._ids[rest[:end]])
            rest = rest[end:]
        return ids
