"""Byte-level BPE out of a `tokenizer.json`: what GPT-2, Llama 3, Qwen and SmolLM use.

Most vocabularies have a token for every byte, so any text can be spelled; where one lacks some, the library would drop
them without a word, so a text that has them is refused. Only files whose normaliser and pre-tokeniser keep text
as it is are taken: one that adds a space or rewrites letters could not be literal.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from tokenizers import AddedToken
from tokenizers import Tokenizer as Library

from tie.prompting.controls import Control, Controls
from tie.prompting.errors import LiteralRefused, TokenizerRejected

_HARMLESS_NORMALIZERS: Final = frozenset({"NFC", "Sequence"})


class ByteBpe:
    """See `tokenizers.Tokenizer`."""

    adds_leading_space: Final = False

    def __init__(self, data: bytes, vocab_size: int) -> None:
        self._library = _load(data)
        self.vocab_size = self._library.get_vocab_size(with_added_tokens=True)
        if self.vocab_size > vocab_size:
            raise TokenizerRejected(f"tokenizer.json has {self.vocab_size} tokens, the model has {vocab_size}")
        added = self._library.get_added_tokens_decoder()
        if added and max(added) >= vocab_size:
            raise TokenizerRejected(f"tokenizer.json adds token {max(added)}, the model has {vocab_size}")
        # A run of white space that was added to the vocabulary steers nothing: it is text like any other.
        steering = {token_id: token for token_id, token in added.items() if token.content.strip()}
        self._library.add_special_tokens([_special(token) for token in steering.values()])
        self._library.encode_special_tokens = True  # their spellings in a text are text
        self.controls = Controls(_control(token_id, token) for token_id, token in steering.items())
        self._spellings = {
            token_id: b"" if token.special else token.content.encode("utf-8") for token_id, token in added.items()
        }

        self._unspelled = bytes(
            byte for letter, byte in BYTES_BY_LETTER.items() if self._library.token_to_id(letter) is None
        )

    def encode_literal(self, text: str, *, is_start: bool) -> Sequence[int]:
        if self._unspelled and len(data := text.encode("utf-8")) != len(data.translate(None, self._unspelled)):
            raise LiteralRefused("the model's vocabulary has no way to spell a character of the text")
        # the batch call is the one that computes no offsets, which would take hundreds of bytes a token
        ids: list[int] = self._library.encode_batch_fast([text], add_special_tokens=False)[0].ids
        if not self.controls.token_ids.isdisjoint(ids):
            raise LiteralRefused("this tokenizer cannot write the spelling of a control token as text")
        return ids

    def spelling(self, token_id: int) -> bytes:
        found = self._spellings.get(token_id)
        if found is None:
            name = self.name(token_id)
            found = self._spellings[token_id] = bytes(BYTES_BY_LETTER[letter] for letter in name)
        return found

    def name(self, token_id: int) -> str:
        if not 0 <= token_id < 1 << 31:
            return ""
        return self._library.id_to_token(token_id) or ""


def letters() -> dict[str, int]:
    """The alphabet in which byte-level BPE writes bytes: itself where printable, else from U+0100 on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


BYTES_BY_LETTER: Final = letters()


def _load(data: bytes) -> Library:
    try:
        library = Library.from_buffer(data)
    except Exception as error:  # the library raises the bare Exception for any malformed file
        raise TokenizerRejected("tokenizer.json is not a tokenizer that can be read") from error
    library.no_truncation()
    library.no_padding()
    if type(library.model).__name__ != "BPE":
        raise TokenizerRejected(f"tokenizer.json is of the kind {type(library.model).__name__}, not byte-level BPE")
    if unfit := sorted(_kinds(_state(library.normalizer)) - _HARMLESS_NORMALIZERS):
        raise TokenizerRejected(f"the normaliser {unfit[0]} of tokenizer.json rewrites text")
    steps = _steps(_state(library.pre_tokenizer))
    byte_levels = [step for step in steps if step.get("type") == "ByteLevel"]
    if not byte_levels:
        raise TokenizerRejected("tokenizer.json has no byte-level pre-tokeniser")
    if any(step.get("add_prefix_space") for step in byte_levels):
        raise TokenizerRejected("the pre-tokeniser of tokenizer.json adds a space to text")
    library.decoder = None
    return library


def _state(component: Any) -> dict[str, Any]:
    if component is None:
        return {}
    state = json.loads(component.__getstate__())
    return state if isinstance(state, dict) else {}


def _steps(state: dict[str, Any]) -> list[dict[str, Any]]:
    inner = [*state.get("pretokenizers", ()), *state.get("normalizers", ())]
    return [state, *(step for item in inner for step in _steps(item))]


def _kinds(state: dict[str, Any]) -> set[str]:
    return {str(step["type"]) for step in _steps(state) if "type" in step}


def _special(token: AddedToken) -> AddedToken:
    return AddedToken(token.content, special=True, normalized=False)


def _control(token_id: int, token: AddedToken) -> Control:
    return Control(token.content, token_id, strips_left=token.lstrip, strips_right=token.rstrip)
