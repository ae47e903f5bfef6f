"""Weights as a Hugging Face file of the architecture has them: its names, its fused matrices, its way with norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tie.catalog.description import ModelDescription

Array = npt.NDArray[Any]

_FUSED = {
    "attn.qkv.weight": ("attn.q.weight", "attn.k.weight", "attn.v.weight"),
    "mlp.gate_up.weight": ("mlp.gate.weight", "mlp.up.weight"),
}


def their_weights(model: ModelDescription, weights: Mapping[str, Array]) -> dict[str, Array]:
    if model.architecture.startswith("gemma"):
        weights = {name: w - np.float32(1) if name.endswith("norm.weight") else w for name, w in weights.items()}
    if model.architecture == "phi3":
        weights = _fused(model, dict(weights))
    return {their_name(model, name): values for name, values in weights.items()}


def their_name(model: ModelDescription, name: str) -> str:
    if name == "lm_head.weight":
        return name
    mlp_norm = "pre_feedforward_layernorm." if model.post_norms else "post_attention_layernorm."
    for ours, theirs in (
        ("embed.", "embed_tokens."),
        ("attn_norm.", "input_layernorm."),
        ("attn_post_norm.", "post_attention_layernorm."),
        ("mlp_norm.", mlp_norm),
        ("mlp_post_norm.", "post_feedforward_layernorm."),
        *((f".attn.{part}.", f".self_attn.{part}_proj.") for part in ("q", "k", "v", "o", "qkv")),
        *((f".attn.{part}_norm.", f".self_attn.{part}_norm.") for part in "qk"),
        *((f".mlp.{part}.", f".mlp.{part}_proj.") for part in ("gate", "up", "down", "gate_up")),
    ):
        if ours in name:
            return f"model.{name.replace(ours, theirs)}"
    return f"model.{name}"


def _fused(model: ModelDescription, weights: dict[str, Array]) -> dict[str, Array]:
    for index in range(model.layer_count):
        for whole, parts in _FUSED.items():
            rows = [weights.pop(f"layers.{index}.{part}") for part in parts]
            weights[f"layers.{index}.{whole}"] = np.concatenate(rows)
    return weights
