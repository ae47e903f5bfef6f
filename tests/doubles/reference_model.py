"""A decoder of the Llama family in a page of numpy, computed from a bundle: slow, plain, and independent of Bones.

It shows that an import kept a model's meaning, where the reference implementation is only present as golden files.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tie.bundling.quantise import decode
from tie.catalog.bundle import Bundle
from tie.catalog.description import LinearScaling, Llama3Scaling, ModelDescription, YarnScaling
from tie.catalog.layout import PARTS
from tie.catalog.safetensors_header import Tensor

Array = npt.NDArray[np.float32]
_DTYPES = {"F32": "<f4", "BF16": "<u2", "F16": "<f2", "I8": "i1", "U8": "u1"}


def read_weights(bundle: Bundle) -> dict[str, Array]:
    """Every tensor of the model in f32, by its name."""
    stored = {name: (file.fd, tensor) for file in bundle.weights for name, tensor in file.tensors.items()}
    weights: dict[str, Array] = {}
    for name, form in bundle.forms.items():
        parts = {suffix: _array(*stored[name + suffix]) for suffix, _, _ in PARTS[form]}
        is_vector = next(iter(parts.values())).ndim == 1
        weights[name] = parts[""].astype(np.float32) if is_vector else decode(parts, form)
    return weights


def logits(model: ModelDescription, weights: dict[str, Array], tokens: Sequence[int]) -> Array:
    """After each of the tokens: `[tokens, vocabulary]`."""
    x = weights["embed.weight"][list(tokens)]
    cos, sin = _rotation(model, len(tokens))
    for index in range(model.layer_count):
        layer = {name.removeprefix(f"layers.{index}."): w for name, w in weights.items()}
        x = x + _attention(model, layer, _norm(x, layer["attn_norm.weight"], model.norm_eps), cos, sin)
        inner = _norm(x, layer["mlp_norm.weight"], model.norm_eps)
        gate = inner @ layer["mlp.gate.weight"].T
        gate = gate / (1 + np.exp(-gate)) * (inner @ layer["mlp.up.weight"].T)
        x = x + gate @ layer["mlp.down.weight"].T
    head = weights["embed.weight" if model.tied_embeddings else "lm_head.weight"]
    result: Array = _norm(x, weights["norm.weight"], model.norm_eps) @ head.T
    return result


def _array(fd: int, tensor: Tensor) -> npt.NDArray[np.generic]:
    data = os.pread(fd, tensor.size_bytes, tensor.offset)
    return np.frombuffer(data, _DTYPES[tensor.dtype]).reshape(tensor.shape)


def _norm(x: Array, weight: Array, eps: float) -> Array:
    result: Array = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(eps)) * weight
    return result


def _attention(model: ModelDescription, layer: dict[str, Array], x: Array, cos: Array, sin: Array) -> Array:
    def heads(name: str, count: int) -> Array:
        projected = x @ layer[f"attn.{name}.weight"].T + layer.get(f"attn.{name}.bias", np.float32(0))
        result: Array = projected.reshape(len(x), count, model.head_dim).swapaxes(0, 1)
        return result

    q = _rotate(heads("q", model.query_heads), cos, sin)
    k = _rotate(heads("k", model.kv_heads), cos, sin)
    group = model.query_heads // model.kv_heads
    k, v = k.repeat(group, axis=0), heads("v", model.kv_heads).repeat(group, axis=0)
    scores = q @ k.swapaxes(1, 2) / np.float32(model.head_dim**0.5)
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ v
    result: Array = mixed.swapaxes(0, 1).reshape(len(x), -1) @ layer["attn.o.weight"].T
    return result


def _rotate(x: Array, cos: Array, sin: Array) -> Array:
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin, rest], axis=-1)


def _rotation(model: ModelDescription, count: int) -> tuple[Array, Array]:
    frequencies, magnitude = _frequencies(model)
    angles = np.arange(count)[:, None] * frequencies
    return (np.cos(angles) * magnitude).astype(np.float32), (np.sin(angles) * magnitude).astype(np.float32)


def _frequencies(model: ModelDescription) -> tuple[npt.NDArray[np.float64], float]:
    dim, theta = model.rope.rotary_dim, model.rope.theta
    plain = theta ** -(np.arange(0, dim, 2) / dim)
    match model.rope.scaling:
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
