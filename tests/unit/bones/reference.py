"""A decoder in a page of NumPy, in 64-bit floats: what Bones must compute, rounded where it rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from unit.bones.arithmetic import EXACT, Arithmetic, Floats

Weights = Mapping[str, Floats]


def describe(**changes: Any) -> dict[str, Any]:
    """A small description; any key by name. `window`, and keys of `rope`, are those of its one kind of attention."""
    rope = {"theta": 10000.0, "rotary_dim": changes.get("head_dim", 16)} | changes.pop("rope", {})
    kind = {"rope": rope} | ({"window": changes.pop("window")} if "window" in changes else {})
    return {
        "architecture": "llama",
        "layout": "panels-1",
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
        "activation": "silu",
        "qkv_bias": False,
        "output_bias": False,
        "mlp_bias": False,
        "qk_norm": False,
        "post_norms": False,
        "layer_pattern": ["global"],
        "attention": {"global": kind},
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
    optional: dict[str, dict[str, tuple[int, ...]]] = {
        "qkv_bias": {"attn.q.bias": (query,), "attn.k.bias": (kv,), "attn.v.bias": (kv,)},
        "output_bias": {"attn.o.bias": (hidden,)},
        "mlp_bias": {"mlp.gate.bias": (inner,), "mlp.up.bias": (inner,), "mlp.down.bias": (hidden,)},
        "qk_norm": {"attn.q_norm.weight": (d["head_dim"],), "attn.k_norm.weight": (d["head_dim"],)},
        "post_norms": {"attn_post_norm.weight": (hidden,), "mlp_post_norm.weight": (hidden,)},
    }
    for flag, vectors in optional.items():
        layer |= vectors if d[flag] else {}
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


def logits(d: Mapping[str, Any], weights: Weights, tokens: Sequence[int], numbers: Arithmetic = EXACT) -> Floats:
    """After each token: `[tokens, vocabulary]`."""

    def add(x: Floats, y: Floats, post_norm: Floats | None) -> Floats:
        return x + (y if post_norm is None else _norm(y, post_norm, d["norm_eps"]))

    x = weights["embed.weight"][list(tokens)] * d.get("embedding_scale", 1.0)
    for index in range(d["layer_count"]):
        layer = {name.removeprefix(f"layers.{index}."): w for name, w in weights.items()}
        kind = d["attention"][d["layer_pattern"][index % len(d["layer_pattern"])]]
        mixed = _attention(d, kind, layer, _norm(x, layer["attn_norm.weight"], d["norm_eps"]), numbers)
        x = add(x, mixed, layer.get("attn_post_norm.weight"))
        turned = _mlp(d, layer, _norm(x, layer["mlp_norm.weight"], d["norm_eps"]), numbers)
        x = add(x, turned, layer.get("mlp_post_norm.weight"))
    head = "embed" if d["tied_embeddings"] else "lm_head"
    return _capped(
        _linear(weights, head, _norm(x, weights["norm.weight"], d["norm_eps"]), numbers), d.get("logit_softcap")
    )


def _linear(layer: Weights, name: str, x: Floats, numbers: Arithmetic) -> Floats:
    matrix = f"{name}.weight"
    result: Floats = numbers.operand(x, matrix) @ layer[matrix].T + layer.get(f"{name}.bias", 0.0)
    return result


def _capped(x: Floats, cap: float | None) -> Floats:
    return x if cap is None else cap * np.tanh(x / cap)


def _mlp(d: Mapping[str, Any], layer: Weights, x: Floats, numbers: Arithmetic) -> Floats:
    gate = _linear(layer, "mlp.gate", x, numbers)
    if d["activation"] == "silu":
        gate = gate / (1 + np.exp(-gate))
    else:
        gate = 0.5 * gate * (1 + np.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
    return _linear(layer, "mlp.down", gate * _linear(layer, "mlp.up", x, numbers), numbers)


def _norm(x: Floats, weight: Floats, eps: float) -> Floats:
    result: Floats = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
    return result


def _attention(d: Mapping[str, Any], kind: Mapping[str, Any], layer: Weights, x: Floats, numbers: Arithmetic) -> Floats:
    def heads(name: str, count: int) -> Floats:
        return _linear(layer, f"attn.{name}", x, numbers).reshape(len(x), count, d["head_dim"])

    def placed(name: str, count: int) -> Floats:
        out = heads(name, count)
        if d["qk_norm"]:
            out = _norm(out, layer[f"attn.{name}_norm.weight"], d["norm_eps"])
        return _turn(kind["rope"], out) if "rope" in kind else out

    group = d["query_heads"] // d["kv_heads"]
    q = numbers.cached(placed("q", d["query_heads"]) * d.get("attention_scale", d["head_dim"] ** -0.5))
    k = np.repeat(numbers.cached(placed("k", d["kv_heads"])), group, axis=1)
    v = np.repeat(numbers.cached(heads("v", d["kv_heads"])), group, axis=1)
    scores = _capped(np.einsum("qhd,khd->hqk", q, k), d.get("attention_softcap"))
    ages = np.arange(len(x))[:, None] - np.arange(len(x))
    scores = np.where((ages >= 0) & (ages < kind.get("window", len(x))), scores, -np.inf)
    mixed = np.einsum("hqk,khd->qhd", numbers.shares(scores), v).reshape(len(x), -1)
    return _linear(layer, "attn.o", mixed, numbers)


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
