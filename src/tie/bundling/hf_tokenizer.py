"""The tokenizer of a Hugging Face directory, and every token that any of its files says ends an answer.

What a tokenizer.json would add by itself (a first token, padding, truncation) is taken out of it and, as far as it is
the beginning-of-sequence token, told in the bundle's description: a request process adds it, once.

Tokens that other files add to a SentencePiece model are not imported: where the model could meet one, the source is
refused. One that the model has no row for, or that stands for an image, no text can meet.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import sentencepiece

from tie.bundling.errors import SourceRejected
from tie.bundling.hf_files import MAX_TOKENIZER_BYTES, read_bytes, read_table
from tie.bundling.source import TokenizerAsset
from tie.catalog.bounds import MAX_VOCAB

_CONFIG: Final = "tokenizer_config.json"
_JSON: Final = "tokenizer.json"
_MODEL: Final = "tokenizer.model"
_ADDED: Final = "added_tokens.json"

IdOf = Callable[[str], int | None]


def read_tokenizer(directory: Path, model_config: dict[str, Any], vocab_size: int) -> TokenizerAsset:
    """`vocab_size` is the model's: a token that is added beyond it is none."""
    config = read_table(directory, _CONFIG) or {}
    values = read_table(directory, _JSON, MAX_TOKENIZER_BYTES)
    if values is not None and _is_byte_level(values):
        id_of = _json_ids(values)
        bos = _bos(config, model_config, id_of)
        add_bos = _adds_first(values, bos) or config.get("add_bos_token") is True
        eos = _eos(directory, config, model_config, id_of)
        return TokenizerAsset("byte_bpe", _plain(values), bos, add_bos and bos is not None, eos)
    data = read_bytes(directory, _MODEL, MAX_TOKENIZER_BYTES)
    if data is None:
        raise SourceRejected(_JSON, f"is missing or not byte-level BPE, and there is no {_MODEL}")
    needless = (model_config.get("image_token_index"), model_config.get("image_token_id"))
    added = [number for number in _added(directory, config) if number < vocab_size and number not in needless]
    id_of = _piece_ids(data, added)
    bos = _bos(config, model_config, id_of)
    add_bos = config.get("add_bos_token", True) is not False
    return TokenizerAsset(
        "sentencepiece", data, bos, add_bos and bos is not None, _eos(directory, config, model_config, id_of)
    )


def _is_byte_level(values: dict[str, Any]) -> bool:
    model = values.get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        return False
    return any(step.get("type") == "ByteLevel" for step in _steps(values.get("pre_tokenizer"), "pretokenizers"))


def _steps(value: Any, inner: str) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        children = value.get(inner)
        for child in children if isinstance(children, list) else [value]:
            if isinstance(child, dict):
                yield child


def _json_ids(values: dict[str, Any]) -> IdOf:
    vocab = values["model"].get("vocab")
    added = values.get("added_tokens", [])
    if not isinstance(vocab, dict) or not isinstance(added, list):
        raise SourceRejected(_JSON, "has no vocab, or added_tokens that are not a list")
    ids: dict[str, Any] = dict(vocab)
    for token in added:
        if not isinstance(token, dict) or not isinstance(token.get("content"), str):
            raise SourceRejected(_JSON, "has an added token without content")
        ids[token["content"]] = token.get("id")
    if not all(type(number) is int and 0 <= number < MAX_VOCAB for number in ids.values()):
        raise SourceRejected(_JSON, f"has a token id that is not an integer below {MAX_VOCAB}")
    return ids.get


def _added(directory: Path, config: dict[str, Any]) -> Iterator[int]:
    """Numbers of the tokens that files beside a SentencePiece model add to it, or only describe."""
    decoder = config.get("added_tokens_decoder", {})
    if not isinstance(decoder, dict) or not all(re.fullmatch("[0-9]{1,9}", number) for number in decoder):
        raise SourceRejected(_CONFIG, "key added_tokens_decoder is not a table by token")
    for number in (read_table(directory, _ADDED) or {}).values():
        if type(number) is not int:
            raise SourceRejected(_ADDED, "has a token whose number is no integer")
        yield number
    yield from map(int, decoder)


def _piece_ids(data: bytes, added: list[int]) -> IdOf:
    processor = sentencepiece.SentencePieceProcessor()
    try:
        processor.LoadFromSerializedProto(data)
    except RuntimeError:
        raise SourceRejected(_MODEL, "is not a SentencePiece model") from None
    count = int(processor.GetPieceSize())
    if any(number >= count for number in added):
        raise SourceRejected(_MODEL, f"has {count} pieces, but other files add tokens to it, which is not imported")

    def id_of(piece: str) -> int | None:
        number = int(processor.PieceToId(piece))
        return number if processor.IdToPiece(number) == piece else None

    return id_of


def _adds_first(values: dict[str, Any], bos: int | None) -> bool:
    """Whether the tokenizer by itself puts the beginning-of-sequence token first; anything else it adds is refused."""
    for step in _steps(values.get("post_processor"), "processors"):
        if step.get("type") != "TemplateProcessing":
            continue
        single = step.get("single")
        parts = [next(iter(part), "") for part in single if isinstance(part, dict)] if isinstance(single, list) else []
        if parts == ["Sequence"]:
            continue
        specials = step.get("special_tokens")
        entries = specials.values() if isinstance(specials, dict) else ()
        ids = [entry.get("ids") for entry in entries if isinstance(entry, dict)]
        if parts != ["SpecialToken", "Sequence"] or [bos] not in ids:
            raise SourceRejected(_JSON, "adds tokens other than a beginning-of-sequence token by itself")
        return True
    return False


def _plain(values: dict[str, Any]) -> bytes:
    kept = {**values, "post_processor": None, "truncation": None, "padding": None}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def _bos(config: dict[str, Any], model_config: dict[str, Any], id_of: IdOf) -> int | None:
    text = _content(config.get("bos_token"))
    if text is not None:
        return _known(_CONFIG, "bos_token", id_of(text))
    declared = model_config.get("bos_token_id")
    return None if declared is None else _known("config.json", "bos_token_id", declared)


def _eos(directory: Path, config: dict[str, Any], model_config: dict[str, Any], id_of: IdOf) -> tuple[int, ...]:
    """In the order of the files; a model that may end in several ways says so in several places."""
    found: dict[int, None] = {}
    generation = read_table(directory, "generation_config.json") or {}
    for file, values in (("config.json", model_config), ("generation_config.json", generation)):
        declared = values.get("eos_token_id", [])
        for number in declared if isinstance(declared, list) else [declared]:
            found[_known(file, "eos_token_id", number)] = None
    special = read_table(directory, "special_tokens_map.json") or {}
    for file, values in ((_CONFIG, config), ("special_tokens_map.json", special)):
        text = _content(values.get("eos_token"))
        if text is not None:
            found[_known(file, "eos_token", id_of(text))] = None
    if not found:
        raise SourceRejected("config.json", "names no token that ends an answer (eos_token_id)")
    return tuple(found)


def _content(token: Any) -> str | None:
    """A token is given as text, or as an object with its text as `content`."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _known(file: str, key: str, number: Any) -> int:
    if type(number) is not int or not 0 <= number < MAX_VOCAB:
        raise SourceRejected(file, f"key {key} is not a token of the tokenizer")
    return number
