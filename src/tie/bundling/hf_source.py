"""A Hugging Face directory as a source: `config.json`, safetensors in one file or in shards, tokenizer, template."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tie.bundling.errors import SourceRejected
from tie.bundling.hf_files import check_plain_name, read_bytes, read_object, read_table, set_keys
from tie.bundling.hf_model import CONFIG, read_model
from tie.bundling.hf_tokenizer import read_tokenizer
from tie.bundling.source import Source, SourceForm, SourceTensor, model_tensors
from tie.catalog.safetensors_header import Tensor, read_header

_SINGLE: Final = "model.safetensors"
_INDEX: Final = "model.safetensors.index.json"
_MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
_MAX_SHARDS: Final = 1024
_MAX_TEMPLATE_BYTES: Final = 1024 * 1024

_NAMES: Final[Mapping[str, str]] = {
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
}
_LAYER: Final = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.(.+)")
_LAYER_NAMES: Final[Mapping[str, str]] = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "mlp_norm.weight",
    **{f"self_attn.{name}_proj.weight": f"attn.{name}.weight" for name in "qkvo"},
    **{f"self_attn.{name}_proj.bias": f"attn.{name}.bias" for name in "qkv"},
    **{f"mlp.{name}_proj.weight": f"mlp.{name}.weight" for name in ("gate", "up", "down")},
}
_DERIVED: Final = "self_attn.rotary_emb.inv_freq"  # old files keep what follows from the configuration
_FORMS: Final[Mapping[str, SourceForm]] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


@contextmanager
def open_hugging_face(directory: Path) -> Iterator[Source]:
    """The tensors can be read for as long as the context is open."""
    config = read_object(directory, CONFIG)
    if config is None:
        raise SourceRejected(CONFIG, "is missing")
    model, notes = read_model(config)
    with ExitStack() as stack:
        tensors = _tensors(directory, stack)
        if model.tied_embeddings and tensors.pop("lm_head.weight", None) is not None:
            notes = (*notes, "lm_head.weight is left out: the configuration ties it to the embedding")
        tokenizer = read_tokenizer(directory, set_keys(config))
        template, more = _template(directory)
        yield Source(
            _bundle_name(directory),
            model,
            tokenizer,
            template,
            model_tensors(CONFIG, model, tensors),
            (*notes, *more),
        )


def _tensors(directory: Path, stack: ExitStack) -> dict[str, SourceTensor]:
    tensors: dict[str, SourceTensor] = {}
    for file, expected in _shards(directory).items():
        fd = _open(directory, file)
        stack.callback(os.close, fd)
        header = read_header(file, fd)
        if expected is not None and header.tensors.keys() != expected:
            raise SourceRejected(file, f"does not hold exactly the tensors that {_INDEX} says")
        for name, tensor in header.tensors.items():
            ours = _our_name(file, name)
            if ours is None:
                continue
            if ours in tensors:
                raise SourceRejected(file, f"tensor {name} is given twice")
            tensors[ours] = _source_tensor(ours, tensor, file, fd)
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


def _our_name(file: str, name: str) -> str | None:
    layer = _LAYER.fullmatch(name)
    if layer and layer[2] == _DERIVED:
        return None
    ours = _LAYER_NAMES.get(layer[2]) if layer else _NAMES.get(name)
    if ours is None:
        raise SourceRejected(file, f"tensor {name} is not one that the model family has")
    return f"layers.{layer[1]}.{ours}" if layer else ours


def _source_tensor(name: str, tensor: Tensor, file: str, fd: int) -> SourceTensor:
    form = _FORMS.get(tensor.dtype)
    if form is None:
        raise SourceRejected(file, f"tensor {tensor.name} is {tensor.dtype}; only F32, F16 and BF16 are imported")
    return SourceTensor(name, tensor.shape, form, file, fd, tensor.offset)


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
