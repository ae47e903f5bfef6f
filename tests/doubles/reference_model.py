"""A decoder of every family that `ModelDescription` can express, in a page of numpy, computed from a bundle: slow,
plain, and independent of Bones.

It shows that an import kept a model's meaning, where the reference implementation is only present as golden files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tie.bundling.packing import unpack
from tie.bundling.quantise import decode
from tie.catalog.bundle import Bundle
from tie.catalog.description import ModelDescription
from tie.catalog.layout import PARTS, expected_tensors
from tie.catalog.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling
from tie.catalog.safetensors_header import Tensor

Array = npt.NDArray[np.float32]
Rounding = Callable[[Array], Array]
_DTYPES = {"F32": "<f4", "BF16": "<u2", "F16": "<f2", "U8": "u1"}


def read_weights(bundle: Bundle) -> dict[str, Array]:
    """Every tensor of the model in f32, by its name."""
    stored = {name: (file.fd, tensor) for file in bundle.weights for name, tensor in file.tensors.items()}
    weights: dict[str, Array] = {}
    for expected in expected_tensors(bundle.description.model):
        form = bundle.forms[expected.name]
        parts = {part.suffix: _array(*stored[expected.name + part.suffix]) for part in PARTS[form]}
        is_matrix = expected.is_matrix
        weights[expected.name] = decode(unpack(parts, form, expected.shape) if is_matrix else parts, form)
    return weights


def _exact(x: Array) -> Array:
    return x


@dataclass(frozen=True, slots=True)
class _Layer:
    weights: dict[str, Array]
    rounded: Rounding

    def __getitem__(self, name: str) -> Array:
        return self.weights[name]

    def linear(self, name: str, x: Array) -> Array:
        result: Array = self.rounded(x) @ self[f"{name}.weight"].T + self.weights.get(f"{name}.bias", np.float32(0))
        return result


def logits(
    model: ModelDescription, weights: dict[str, Array], tokens: Sequence[int], rounded: Rounding = _exact
) -> Array:
    """After each of the tokens: `[tokens, vocabulary]`. `rounded` is what a matrix makes of its input."""
    x = weights["embed.weight"][list(tokens)] * np.float32(model.embedding_scale)
    for index in range(model.layer_count):
        layer = _Layer({name.removeprefix(f"layers.{index}."): w for name, w in weights.items()}, rounded)
        mixed = _attention(model, index, layer, _norm(x, layer["attn_norm.weight"], model.norm_eps))
        x = x + (_norm(mixed, layer["attn_post_norm.weight"], model.norm_eps) if model.post_norms else mixed)
        turned = _mlp(model, layer, _norm(x, layer["mlp_norm.weight"], model.norm_eps))
        x = x + (_norm(turned, layer["mlp_post_norm.weight"], model.norm_eps) if model.post_norms else turned)
    head = weights["embed.weight" if model.tied_embeddings else "lm_head.weight"]
    return _capped(rounded(_norm(x, weights["norm.weight"], model.norm_eps)) @ head.T, model.logit_softcap)


def _array(fd: int, tensor: Tensor) -> npt.NDArray[np.generic]:
    data = os.pread(fd, tensor.size_bytes, tensor.offset)
    return np.frombuffer(data, _DTYPES[tensor.dtype]).reshape(tensor.shape)


def _norm(x: Array, weight: Array, eps: float) -> Array:
    result: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(eps)) * weight
    return result


def _capped(x: Array, cap: float | None) -> Array:
    return x if cap is None else np.float32(cap) * np.tanh(x / np.float32(cap))


def _mlp(model: ModelDescription, layer: _Layer, x: Array) -> Array:
    gate = layer.linear("mlp.gate", x)
    if model.activation == "silu":
        gate = gate / (1 + np.exp(-gate))
    else:
        gate = gate / 2 * (1 + np.tanh(np.float32((2 / np.pi) ** 0.5) * (gate + np.float32(0.044715) * gate**3)))
    return layer.linear("mlp.down", gate * layer.linear("mlp.up", x))


def _attention(model: ModelDescription, index: int, layer: _Layer, x: Array) -> Array:
    kind = model.kind_of(index)

    def heads(name: str, count: int) -> Array:
        result: Array = layer.linear(f"attn.{name}", x).reshape(len(x), count, model.head_dim).swapaxes(0, 1)
        return result

    def placed(name: str, count: int) -> Array:
        projected = heads(name, count)
        if model.qk_norm:
            projected = _norm(projected, layer[f"attn.{name}_norm.weight"], model.norm_eps)
        return projected if kind.rope is None else _rotate(projected, *_rotation(kind.rope, len(x)))

    group = model.query_heads // model.kv_heads
    q = placed("q", model.query_heads)
    k, v = (values.repeat(group, axis=0) for values in (placed("k", model.kv_heads), heads("v", model.kv_heads)))
    scores = _capped(q @ k.swapaxes(1, 2) * np.float32(model.score_scale), model.attention_softcap)
    is_seen = np.tri(len(x), dtype=bool) & ~np.tri(len(x), k=-(kind.window or len(x)), dtype=bool)
    scores = np.where(is_seen, scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ v
    return layer.linear("attn.o", mixed.swapaxes(0, 1).reshape(len(x), -1))


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def _rotation(rope: Rope, count: int) -> tuple[Array, Array]:
    frequencies, magnitude = _frequencies(rope)
    angles = np.arange(count)[:, None] * frequencies
    return (np.cos(angles) * magnitude).astype(np.float32), (np.sin(angles) * magnitude).astype(np.float32)


def _frequencies(rope: Rope) -> tuple[npt.NDArray[np.float64], float]:
    dim, theta = rope.rotary_dim, rope.theta
    plain = theta ** -(np.arange(0, dim, 2) / dim)
    match rope.scaling:
        case LinearScaling(factor):
            return plain / factor, 1.0
        case Llama3Scaling(factor, low, high, original):
            smooth = np.clip((original * plain / (2 * np.pi) - low) / (high - low), 0, 1)
            return plain * ((1 - smooth) / factor + smooth), 1.0
        case YarnScaling(factor, original, fast, slow, attention):

            def dimension(rotations: float) -> float:
                return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(theta))

            low_dim, high_dim = max(math.floor(dimension(fast)), 0), min(math.ceil(dimension(slow)), dim - 1)
            ramp = np.clip((np.arange(dim // 2) - low_dim) / max(high_dim - low_dim, 1e-3), 0, 1)
            return plain / factor * ramp + plain * (1 - ramp), attention or 0.1 * math.log(factor) + 1
    return plain, 1.0
