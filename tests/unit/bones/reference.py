"""A Llama-family decoder in a page of NumPy, in 64-bit floats: what Bones must compute, however it does it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Weights = Mapping[str, Floats]


def describe(**changes: Any) -> dict[str, Any]:
    """A small description; keys of `rope` are given as `rope={...}`, the rest by name."""
    rope = {"theta": 10000.0, "rotary_dim": changes.get("head_dim", 16)} | changes.pop("rope", {})
    return {
        "architecture": "llama",
        "layout": "rows-1",
        "dtype": "f32",
        "hidden_size": 64,
        "intermediate_size": 96,
        "layer_count": 2,
        "query_heads": 4,
        "kv_heads": 2,
        "head_dim": 16,
        "vocab_size": 90,
        "context_length": 96,
        "norm_eps": 1e-5,
        "tied_embeddings": True,
        "attention_bias": False,
        "activation": "silu",
        "rope": rope,
    } | changes


def shapes(d: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a described model."""
    hidden, inner, vocab = d["hidden_size"], d["intermediate_size"], d["vocab_size"]
    query, kv = d["query_heads"] * d["head_dim"], d["kv_heads"] * d["head_dim"]
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,), "mlp_norm.weight": (hidden,),
        "attn.q.weight": (query, hidden), "attn.k.weight": (kv, hidden), "attn.v.weight": (kv, hidden),
        "attn.o.weight": (hidden, query), "mlp.gate.weight": (inner, hidden), "mlp.up.weight": (inner, hidden),
        "mlp.down.weight": (hidden, inner),
    }  # fmt: skip
    if d["attention_bias"]:
        layer |= {"attn.q.bias": (query,), "attn.k.bias": (kv,), "attn.v.bias": (kv,)}
    found: dict[str, tuple[int, ...]] = {"embed.weight": (vocab, hidden), "norm.weight": (hidden,)}
    if not d["tied_embeddings"]:
        found["lm_head.weight"] = (vocab, hidden)
    return found | {f"layers.{i}.{n}": shape for i in range(d["layer_count"]) for n, shape in layer.items()}


def random_weights(d: Mapping[str, Any], seed: int = 0) -> dict[str, Floats]:
    """Weights that keep activations near 1."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in shapes(d).items():
        noise = rng.standard_normal(shape)
        if "norm" in name:
            noise = 1 + 0.2 * noise
        elif len(shape) == 2 and name != "embed.weight":
            noise = noise * 1.5 / math.sqrt(shape[1])
        weights[name] = noise.astype(np.float32).astype(np.float64)
    return weights


def logits(d: Mapping[str, Any], weights: Weights, tokens: Sequence[int]) -> Floats:
    """After each token: `[tokens, vocabulary]`."""
    x = weights["embed.weight"][list(tokens)]
    for index in range(d["layer_count"]):
        layer = {name.removeprefix(f"layers.{index}."): w for name, w in weights.items()}
        x = x + _attention(d, layer, _norm(x, layer["attn_norm.weight"], d["norm_eps"]))
        inner = _norm(x, layer["mlp_norm.weight"], d["norm_eps"])
        gate = inner @ layer["mlp.gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (inner @ layer["mlp.up.weight"].T)) @ layer["mlp.down.weight"].T
    head = weights["embed.weight" if d["tied_embeddings"] else "lm_head.weight"]
    result: Floats = _norm(x, weights["norm.weight"], d["norm_eps"]) @ head.T
    return result


def _norm(x: Floats, weight: Floats, eps: float) -> Floats:
    result: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return result


def _attention(d: Mapping[str, Any], layer: Weights, x: Floats) -> Floats:
    def heads(name: str, count: int) -> Floats:
        out: Floats = x @ layer[f"attn.{name}.weight"].T + layer.get(f"attn.{name}.bias", 0.0)
        return out.reshape(len(x), count, d["head_dim"])

    group = d["query_heads"] // d["kv_heads"]
    q = _turn(d["rope"], heads("q", d["query_heads"]))
    k = np.repeat(_turn(d["rope"], heads("k", d["kv_heads"])), group, axis=1)
    v = np.repeat(heads("v", d["kv_heads"]), group, axis=1)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(d["head_dim"])
    scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    mixed: Floats = np.einsum("hqk,khd->qhd", shares, v).reshape(len(x), -1) @ layer["attn.o.weight"].T
    return mixed


def _turn(rope: Mapping[str, Any], x: Floats) -> Floats:
    frequencies, factor = _frequencies(rope)
    angles = np.arange(len(x))[:, None, None] * frequencies
    half = rope["rotary_dim"] // 2
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    cos, sin = np.cos(angles) * factor, np.sin(angles) * factor
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


def _frequencies(rope: Mapping[str, Any]) -> tuple[Floats, float]:
    dim, theta = rope["rotary_dim"], rope["theta"]
    plain = theta ** -(np.arange(0, dim, 2) / dim)
    s = rope.get("scaling", {"kind": "none"})
    if s["kind"] == "linear":
        return plain / s["factor"], 1.0
    if s["kind"] == "llama3":
        waves = s["original_context_length"] * plain / (2 * math.pi)
        blend = (waves - s["low_freq_factor"]) / (s["high_freq_factor"] - s["low_freq_factor"])
        blended = (1 - blend) * plain / s["factor"] + blend * plain
        kept = np.where(waves > s["high_freq_factor"], plain, blended)
        return np.where(waves < s["low_freq_factor"], plain / s["factor"], kept), 1.0
    if s["kind"] == "yarn":

        def pair(turns: float) -> float:
            return dim * math.log(s["original_context_length"] / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = max(math.floor(pair(s["beta_fast"])), 0), min(math.ceil(pair(s["beta_slow"])), dim - 1)
        ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
        scaled = plain / s["factor"] * ramp + plain * (1 - ramp)
        return scaled, s.get("attention_factor", 0.1 * math.log(s["factor"]) + 1)
    return plain, 1.0
