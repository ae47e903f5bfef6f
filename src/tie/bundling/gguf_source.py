"""A GGUF file as a source: its header checked, its tensors under our names, its tokenizer and template taken out."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tie.bundling import convert
from tie.bundling.errors import SourceRejected
from tie.bundling.gguf_header import GgufTensor, read_header
from tie.bundling.gguf_model import read_architecture, read_model
from tie.bundling.gguf_tokenizer import read_tokenizer
from tie.bundling.quantise import F32
from tie.bundling.source import Source, SourceTensor, model_tensors
from tie.catalog.description import ModelDescription

_NAMES: Final[Mapping[str, str]] = {
    "token_embd.weight": "embed.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER: Final = re.compile(r"blk\.(0|[1-9][0-9]{0,3})\.(.+)")
_LAYER_NAMES: Final[Mapping[str, str]] = {
    "attn_norm.weight": "attn_norm.weight",
    "attn_q.weight": "attn.q.weight",
    "attn_k.weight": "attn.k.weight",
    "attn_v.weight": "attn.v.weight",
    "attn_q.bias": "attn.q.bias",
    "attn_k.bias": "attn.k.bias",
    "attn_v.bias": "attn.v.bias",
    "attn_output.weight": "attn.o.weight",
    "ffn_norm.weight": "mlp_norm.weight",
    "ffn_gate.weight": "mlp.gate.weight",
    "ffn_up.weight": "mlp.up.weight",
    "ffn_down.weight": "mlp.down.weight",
}
_ROPE_DIVISORS: Final = "rope_freqs.weight"
_INTERLEAVED: Final = frozenset({"llama"})  # architectures whose files keep q and k with each rotated pair adjacent
_MAX_TEMPLATE_CHARACTERS: Final = 1024 * 1024


@contextmanager
def open_gguf(path: Path) -> Iterator[Source]:
    """The tensors can be read for as long as the context is open."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise SourceRejected(path.name, f"cannot be opened: {error.strerror}") from error
    try:
        yield _read(path, fd)
    finally:
        os.close(fd)


def _read(path: Path, fd: int) -> Source:
    file = path.name
    header = read_header(file, fd)
    architecture = read_architecture(file, header.values)
    found = {_our_name(file, name): tensor for name, tensor in header.tensors.items() if name != _ROPE_DIVISORS}
    tokenizer = read_tokenizer(file, header.values)
    embedding = found.get("embed.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise SourceRejected(file, "tensor token_embd.weight is missing or not a matrix")
    pieces = len(header.values["tokenizer.ggml.tokens"])
    if embedding.shape[0] != pieces:
        raise SourceRejected(file, f"has {pieces} tokens, but an embedding of {embedding.shape[0]}")
    has_bias = any(name.endswith(".bias") for name in found)
    if has_bias and architecture in _INTERLEAVED:
        raise SourceRejected(file, f"has attention biases, which are not imported for {architecture}")
    divisors = header.tensors.get(_ROPE_DIVISORS)
    model = read_model(
        file,
        header.values,
        vocab_size=embedding.shape[0],
        tied_embeddings="lm_head.weight" not in found,
        qkv_bias=has_bias,
        rope_divisors=_numbers(file, fd, divisors) if divisors is not None else None,
    )
    tensors = {
        name: SourceTensor(
            name, tensor.shape, tensor.form, file, fd, tensor.offset, _row_order(architecture, name, model)
        )
        for name, tensor in found.items()
    }
    template, notes = _template(file, header.values)
    return Source(_bundle_name(path), model, tokenizer, template, model_tensors(file, model, tensors), notes)


def _our_name(file: str, name: str) -> str:
    layer = _LAYER.fullmatch(name)
    ours = _LAYER_NAMES.get(layer[2]) if layer else _NAMES.get(name)
    if ours is None:
        raise SourceRejected(file, f"tensor {name} is not one that the model family has")
    return f"layers.{layer[1]}.{ours}" if layer else ours


def _row_order(architecture: str, name: str, model: ModelDescription) -> npt.NDArray[np.intp] | None:
    """Rows of q and k within a head: the file has pairs (0, h), (1, h+1), …, the model 0, 1, … , h, h+1, …"""
    if architecture not in _INTERLEAVED or ".attn." not in name:
        return None
    heads = {"q": model.query_heads, "k": model.kv_heads}.get(name.split(".attn.")[1].split(".")[0])
    if heads is None:
        return None
    rows = np.arange(heads * model.head_dim).reshape(heads, model.head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _numbers(file: str, fd: int, tensor: GgufTensor) -> F32:
    if len(tensor.shape) != 1 or tensor.size_bytes > 1 << 16:
        raise SourceRejected(file, f"tensor {tensor.name} is not a short vector")
    source = SourceTensor(tensor.name, tensor.shape, tensor.form, file, fd, tensor.offset)
    return convert.numbers(source).reshape(-1)


def _template(file: str, values: Mapping[str, Any]) -> tuple[str | None, tuple[str, ...]]:
    template = values.get("tokenizer.chat_template")
    if template is not None and (not isinstance(template, str) or len(template) > _MAX_TEMPLATE_CHARACTERS):
        raise SourceRejected(file, f"tokenizer.chat_template is not a string of at most {_MAX_TEMPLATE_CHARACTERS}")
    others = sum(key.startswith("tokenizer.chat_template.") for key in values)
    notes = (f"{others} more chat templates of the file are left out",) if others else ()
    return template, notes


def _bundle_name(path: Path) -> str:
    """SmolLM2-135M-Instruct.Q4_1.gguf → smollm2-135m-instruct"""
    stem = re.sub(r"[.-](q[0-9]_\w+|f16|f32|bf16)$", "", path.stem.lower())
    return re.sub(r"[^a-z0-9._-]+", "-", stem).strip("._-")[:64] or "model"
