"""GGUF files, written for tests: well-formed ones from tiny models, and any hostile variation of the header."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from doubles.tiny_model import CHAT_TEMPLATE, Weights, tiny_weights, tokenizer_file
from gguf import GGMLQuantizationType, quants

from tie.catalog.description import ModelDescription

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_CODES: Final = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "?", U64: "Q", F64: "d"}
_TYPES: Final = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 8, "bf16": 30}
ALIGNMENT: Final = 32


@dataclass
class Tensor:
    name: str
    dimensions: Sequence[int]  # in the file's order, the shortest stride first
    kind: int
    data: bytes
    offset: int | None = None


@dataclass
class GgufFile:
    """Anything may be set before `to_bytes`. A value is (type, value), an array (ARRAY, element type, list)."""

    values: dict[str, Any] = field(default_factory=dict)
    tensors: list[Tensor] = field(default_factory=list)
    version: int = 3
    magic: bytes = b"GGUF"
    tensor_count: int | None = None
    key_count: int | None = None
    alignment: int = ALIGNMENT
    extra_keys: list[tuple[str, Any]] = field(default_factory=list)

    def to_bytes(self) -> bytes:
        header, data = bytearray(), bytearray()
        pairs = [*self.values.items(), *self.extra_keys]
        header += self.magic + struct.pack("<I", self.version)
        header += struct.pack("<Q", len(self.tensors) if self.tensor_count is None else self.tensor_count)
        header += struct.pack("<Q", len(pairs) if self.key_count is None else self.key_count)
        for key, value in pairs:
            header += _string(key) + _value(value)
        for tensor in self.tensors:
            offset = len(data) if tensor.offset is None else tensor.offset
            header += _string(tensor.name) + struct.pack("<I", len(tensor.dimensions))
            header += struct.pack(f"<{len(tensor.dimensions)}Q", *tensor.dimensions)
            header += struct.pack("<IQ", tensor.kind, offset)
            data += tensor.data + bytes(-len(tensor.data) % self.alignment)
        return bytes(header + bytes(-len(header) % self.alignment) + data)


def tiny_gguf(model: ModelDescription, seed: int = 0, form: str = "f32") -> GgufFile:
    """A llama or qwen2 file of the tiny weights; matrices in `form`, q and k interleaved as llama files have them."""
    weights = tiny_weights(model, seed)
    tensors = [_tensor(name, values, model, form) for name, values in weights.items()]
    return GgufFile({**_model_values(model), **tokenizer_values()}, tensors)


def tokenizer_values(pre: str = "gpt-2") -> dict[str, Any]:
    tokenizer = json.loads(tokenizer_file("byte_bpe"))
    pieces: Mapping[str, int] = tokenizer["model"]["vocab"]
    special = {token["id"] for token in tokenizer["added_tokens"]}
    ordered = sorted(pieces, key=lambda piece: pieces[piece])
    return {
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.pre": (STRING, pre),
        "tokenizer.ggml.tokens": (ARRAY, STRING, ordered),
        "tokenizer.ggml.token_type": (ARRAY, I32, [3 if n in special else 1 for n in range(len(ordered))]),
        "tokenizer.ggml.merges": (ARRAY, STRING, [" ".join(pair) for pair in tokenizer["model"]["merges"]]),
        "tokenizer.ggml.bos_token_id": (U32, 1),
        "tokenizer.ggml.eos_token_id": (U32, 2),
        "tokenizer.ggml.eot_token_id": (U32, 0),
        "tokenizer.ggml.add_bos_token": (BOOL, False),
        "tokenizer.chat_template": (STRING, CHAT_TEMPLATE),
    }


def interleaved(values: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    """Rows 0..d of a head as llama files have them: 0, d/2, 1, d/2 + 1, …"""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, values.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def numbers_in(values: npt.NDArray[np.float32], form: str) -> bytes:
    return bytes(quants.quantize(values, GGMLQuantizationType(_TYPES[form])).tobytes())


def weights_in(weights: Weights, form: str) -> Weights:
    """What the numbers are once they have been through `form`, by the gguf package."""
    kind = GGMLQuantizationType(_TYPES[form])
    return {
        name: quants.dequantize(quants.quantize(values, kind), kind) if values.ndim == 2 else values
        for name, values in weights.items()
    }


def _model_values(model: ModelDescription) -> dict[str, Any]:
    prefix, kind = model.architecture, model.kind_of(0)
    assert kind.rope is not None, "a file of these architectures has a rotary embedding"
    values = {
        "general.architecture": (STRING, model.architecture),
        f"{prefix}.block_count": (U32, model.layer_count),
        f"{prefix}.context_length": (U32, model.context_length),
        f"{prefix}.embedding_length": (U32, model.hidden_size),
        f"{prefix}.feed_forward_length": (U32, model.intermediate_size),
        f"{prefix}.attention.head_count": (U32, model.query_heads),
        f"{prefix}.attention.head_count_kv": (U32, model.kv_heads),
        f"{prefix}.attention.key_length": (U32, model.head_dim),
        f"{prefix}.attention.value_length": (U32, model.head_dim),
        f"{prefix}.attention.layer_norm_rms_epsilon": (F32, model.norm_eps),
        f"{prefix}.rope.freq_base": (F32, kind.rope.theta),
        f"{prefix}.rope.dimension_count": (U32, kind.rope.rotary_dim),
    }
    if kind.window is not None:
        values[f"{prefix}.attention.sliding_window"] = (U32, kind.window)
    return values


def _tensor(name: str, values: npt.NDArray[np.float32], model: ModelDescription, form: str) -> Tensor:
    heads = {"q": model.query_heads, "k": model.kv_heads}
    part = name.split(".attn.")[1][0] if ".attn." in name else ""
    if model.architecture == "llama" and part in heads and values.ndim == 2:
        values = interleaved(values, heads[part])
    form = form if values.ndim == 2 else "f32"
    return Tensor(_their_name(name), tuple(reversed(values.shape)), _TYPES[form], numbers_in(values, form))


def _their_name(name: str) -> str:
    whole = {
        "embed.weight": "token_embd.weight",
        "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    for ours, theirs in (
        ("layers.", "blk."),
        ("attn.o.", "attn_output."),
        *((f"attn.{part}.", f"attn_{part}.") for part in "qkv"),
        ("mlp_norm.", "ffn_norm."),
        *((f"mlp.{part}.", f"ffn_{part}.") for part in ("gate", "up", "down")),
    ):
        name = name.replace(ours, theirs)
    return whole.get(name, name)


def _string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value  # as it is, for what no well-formed value is
    if value[0] == ARRAY:
        _, kind, items = value
        return struct.pack("<IIQ", ARRAY, kind, len(items)) + b"".join(_item(kind, item) for item in items)
    return struct.pack("<I", value[0]) + _item(*value)


def _item(kind: int, item: Any) -> bytes:
    return _string(item) if kind == STRING else struct.pack(f"<{_CODES[kind]}", item)
