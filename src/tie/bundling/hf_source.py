"""A Hugging Face directory as a source: `config.json`, safetensors in one file or in shards, tokenizer, template."""

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tie.bundling.errors import SourceRejected
from tie.bundling.hf_files import check_plain_name, read_bytes, read_object, read_table, set_keys
from tie.bundling.hf_model import CONFIG, read_model
from tie.bundling.hf_tensors import TensorReader
from tie.bundling.hf_tokenizer import read_tokenizer
from tie.bundling.source import Source, SourceTensor, model_tensors
from tie.catalog.safetensors_header import read_header

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
_MAX_SHARDS: Final = 1024
_MAX_TEMPLATE_BYTES: Final = 1024 * 1024


@contextmanager
def open_hugging_face(directory: Path) -> Iterator[Source]:
    """The tensors can be read for as long as the context is open."""
    config = read_object(directory, CONFIG)
    if config is None:
        raise SourceRejected(CONFIG, "is missing")
    model, family, notes = read_model(config)
    with ExitStack() as stack:
        tensors = _tensors(directory, TensorReader(family, model), stack)
        if model.tied_embeddings and tensors.pop("lm_head.weight", None) is not None:
            notes = (*notes, "lm_head.weight is left out: the configuration ties it to the embedding")
        text = config[family.text_key] if family.text_key is not None else {}
        tokenizer = read_tokenizer(directory, set_keys(text) | set_keys(config), model.vocab_size)
        template, more = _template(directory)
        yield Source(
            _bundle_name(directory),
            model,
            tokenizer,
            template,
            model_tensors(CONFIG, model, tensors),
            (*notes, *more),
        )


def _tensors(directory: Path, reader: TensorReader, stack: ExitStack) -> dict[str, SourceTensor]:
    tensors: dict[str, SourceTensor] = {}
    for file, expected in _shards(directory).items():
        fd = _open(directory, file)
        stack.callback(os.close, fd)
        header = read_header(file, fd)
        if expected is not None and header.tensors.keys() != expected:
            raise SourceRejected(file, f"does not hold exactly the tensors that {_INDEX} says")
        for name, tensor in header.tensors.items():
            for ours in reader.read(tensor, file, fd):
                if ours.name in tensors:
                    raise SourceRejected(file, f"tensor {name} is given twice")
                tensors[ours.name] = ours
    return tensors


def _shards(directory: Path) -> dict[str, set[str] | None]:
    """File → the tensors that the index says are in it; None where there is no index."""
    if (directory / _SINGLE).exists():
        return {_SINGLE: None}
    index = read_table(directory, _INDEX, _MAX_INDEX_BYTES)
    if index is None:
        raise SourceRejected(_SINGLE, f"is missing, and so is {_INDEX}")
    placed = index.get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise SourceRejected(_INDEX, "has no weight_map")
    shards: dict[str, set[str] | None] = {}
    for name, file in placed.items():
        held = shards.setdefault(check_plain_name(_INDEX, file), set())
        assert held is not None, "files of an index have a set each"
        held.add(name)
    if len(shards) > _MAX_SHARDS:
        raise SourceRejected(_INDEX, f"names {len(shards)} files, more than {_MAX_SHARDS}")
    return shards


def _open(directory: Path, file: str) -> int:
    try:
        return os.open(directory / file, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SourceRejected(file, f"cannot be opened: {error.strerror}") from error


def _template(directory: Path) -> tuple[str | None, tuple[str, ...]]:
    """Its own file, where there is one, comes before the tokenizer's configuration."""
    data = read_bytes(directory, "chat_template.jinja", _MAX_TEMPLATE_BYTES)
    if data is not None:
        try:
            return data.decode("utf-8"), ()
        except UnicodeDecodeError:
            raise SourceRejected("chat_template.jinja", "is not UTF-8") from None
    for file in ("chat_template.json", "tokenizer_config.json"):
        template = (read_table(directory, file) or {}).get("chat_template")
        if template is not None:
            return _one_template(file, template)
    return None, ()


def _one_template(file: str, template: Any) -> tuple[str, tuple[str, ...]]:
    if isinstance(template, str):
        return template, ()
    if isinstance(template, list) and all(isinstance(entry, dict) for entry in template):
        for entry in template:
            if entry.get("name") == "default" and isinstance(entry.get("template"), str):
                return entry["template"], (f"{len(template) - 1} more chat templates of {file} are left out",)
    raise SourceRejected(file, "key chat_template is neither a template nor a list with one named default")


def _bundle_name(directory: Path) -> str:
    name = re.sub(r"[^a-z0-9._-]+", "-", directory.resolve().name.lower())
    return name.strip("._-")[:64] or "model"
