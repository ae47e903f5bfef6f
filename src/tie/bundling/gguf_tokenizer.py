"""The tokenizer out of a GGUF file's metadata, in the form of its own kind, with the tokens that begin and end."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tie.bundling.bpe_tokenizer import PieceType, build_byte_bpe
from tie.bundling.errors import SourceRejected
from tie.bundling.sentencepiece_model import SentencePieceSettings, build_sentencepiece
from tie.bundling.source import TokenizerAsset

_PREFIX: Final = "tokenizer.ggml."
_ENDS: Final = ("eos_token_id", "eot_token_id", "eom_token_id")


def read_tokenizer(file: str, values: Mapping[str, Any]) -> TokenizerAsset:
    metadata = _Metadata(file, values)
    kind = metadata.text("model")
    pieces = metadata.pieces()
    types = metadata.types(len(pieces))
    bos = metadata.token_id("bos_token_id", len(pieces))
    ends = [metadata.token_id(key, len(pieces)) for key in _ENDS]
    eos = tuple(dict.fromkeys(end for end in ends if end is not None))
    if not eos:
        raise SourceRejected(file, "names no token that ends an answer (tokenizer.ggml.eos_token_id)")
    if kind == "gpt2":
        data = build_byte_bpe(file, metadata.text("pre"), pieces, types, metadata.strings("merges"))
        add_bos = metadata.flag("add_bos_token", default=metadata.text("pre") == "llama-bpe")
        return TokenizerAsset("byte_bpe", data, bos, add_bos and bos is not None, eos)
    if kind == "llama":
        data = _sentencepiece(metadata, pieces, types, bos, eos[0])
        add_bos = metadata.flag("add_bos_token", default=True)
        return TokenizerAsset("sentencepiece", data, bos, add_bos and bos is not None, eos)
    raise SourceRejected(file, "tokenizer.ggml.model is neither gpt2 (byte-level BPE) nor llama (SentencePiece)")


def _sentencepiece(
    metadata: "_Metadata", pieces: Sequence[str], types: Sequence[int], bos: int | None, eos: int
) -> bytes:
    if metadata.has("precompiled_charsmap"):
        raise metadata.refusal("precompiled_charsmap", "is a normalisation that is not imported")
    unknown = metadata.token_id("unknown_token_id", len(pieces))
    marked = [number for number, kind in enumerate(types) if kind == PieceType.UNKNOWN]
    if len(marked) != 1 or unknown not in (None, marked[0]):
        raise metadata.refusal("token_type", "does not mark exactly the unknown token as unknown")
    settings = SentencePieceSettings(
        bos_token_id=bos,
        eos_token_id=eos,
        unknown_token_id=marked[0],
        add_dummy_prefix=metadata.flag("add_space_prefix", default=True),
        remove_extra_whitespaces=metadata.flag("remove_extra_whitespaces", default=False),
    )
    return build_sentencepiece(pieces, metadata.numbers("scores", len(pieces)), types, settings)


class _Metadata:
    """Keys under `tokenizer.ggml.`, each with the type that it must have."""

    def __init__(self, file: str, values: Mapping[str, Any]) -> None:
        self._file = file
        self._values = values

    def refusal(self, key: str, fault: str) -> SourceRejected:
        return SourceRejected(self._file, f"key {_PREFIX}{key} {fault}")

    def has(self, key: str) -> bool:
        return _PREFIX + key in self._values

    def text(self, key: str) -> str:
        value = self._get(key)
        if not isinstance(value, str):
            raise self.refusal(key, "is not a string")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._get(key) if self.has(key) else default
        if not isinstance(value, bool):
            raise self.refusal(key, "is not a boolean")
        return value

    def token_id(self, key: str, vocab_size: int) -> int | None:
        if not self.has(key):
            return None
        value = self._get(key)
        if type(value) is not int or not 0 <= value < vocab_size:
            raise self.refusal(key, f"is not a token below {vocab_size}")
        return value

    def strings(self, key: str) -> list[str]:
        values = self._get(key)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.refusal(key, "is not a list of strings")
        return values

    def pieces(self) -> list[str]:
        pieces = self.strings("tokens")
        if not pieces:
            raise self.refusal("tokens", "is empty")
        return pieces

    def types(self, count: int) -> list[int]:
        if not self.has("token_type"):
            raise self.refusal("token_type", "is missing: special tokens cannot be told from text")
        values = self._get("token_type")
        known = set(PieceType)
        if not isinstance(values, list) or len(values) != count or not all(value in known for value in values):
            raise self.refusal("token_type", f"is not a list of {count} types in 1..6")
        return [int(value) for value in values]

    def numbers(self, key: str, count: int) -> list[float]:
        values = self._get(key)
        is_list = isinstance(values, list) and len(values) == count
        if not is_list or not all(isinstance(value, float) and abs(value) < float("inf") for value in values):
            raise self.refusal(key, f"is not a list of {count} finite numbers")
        return list(values)

    def _get(self, key: str) -> Any:
        try:
            return self._values[_PREFIX + key]
        except KeyError:
            raise self.refusal(key, "is missing") from None
