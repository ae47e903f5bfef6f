"""Loads once, at import, what request processes will load, so that a bundle never holds what cannot be used."""

from typing import Final

import sentencepiece
from jinja2 import TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tie.bundling.errors import SourceRejected
from tie.bundling.source import TokenizerAsset
from tie.catalog.description import TOKENIZER_FILES

MAX_TEMPLATE_CHARACTERS: Final = 1024 * 1024


def check_tokenizer(asset: TokenizerAsset, vocab_size: int) -> None:
    """Refuses one that does not load, or has or names tokens beyond the model's vocabulary."""
    file = TOKENIZER_FILES[asset.kind]
    highest = _highest_piece(asset.data) if asset.kind == "sentencepiece" else _highest_token(asset.data)
    if highest >= vocab_size:
        raise SourceRejected(file, f"has token {highest}, but the model has a vocabulary of {vocab_size}")
    named = max(asset.eos_token_ids if asset.bos_token_id is None else (*asset.eos_token_ids, asset.bos_token_id))
    if named >= vocab_size:
        raise SourceRejected(file, f"names token {named}, but the model has a vocabulary of {vocab_size}")


def check_template(text: str) -> None:
    if len(text) > MAX_TEMPLATE_CHARACTERS:
        raise SourceRejected("chat template", f"has {len(text)} characters, more than {MAX_TEMPLATE_CHARACTERS}")
    environment = ImmutableSandboxedEnvironment(extensions=["jinja2.ext.loopcontrols"])
    try:
        environment.parse(text)
    except TemplateSyntaxError as error:
        raise SourceRejected("chat template", f"is not a valid template, at line {error.lineno}") from None
    except RecursionError:
        raise SourceRejected("chat template", "is nested too deeply") from None


def _highest_piece(data: bytes) -> int:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(data)
    except RuntimeError:
        raise SourceRejected("tokenizer.model", "is not a SentencePiece model") from None
    return int(processor.GetPieceSize()) - 1


def _highest_token(data: bytes) -> int:
    try:
        tokenizer = Tokenizer.from_str(data.decode("utf-8"))
    except Exception:  # the library raises bare Exception for whatever it cannot read
        raise SourceRejected("tokenizer.json", "is not a tokenizer that the tokenizers library reads") from None
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=0)
