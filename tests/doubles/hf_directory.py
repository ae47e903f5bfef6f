"""Hugging Face directories, written for tests from tiny models; any file of one may then be replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from doubles.tiny_model import CHAT_TEMPLATE, tiny_weights, tokenizer_file
from safetensors.numpy import save_file

from tie.catalog.description import ModelDescription

Arrays = Mapping[str, npt.NDArray[np.generic]]


def make_hf_directory(
    directory: Path, model: ModelDescription, seed: int = 0, *, shards: int = 1, half: bool = False
) -> Path:
    """`half` stores matrices as f16."""
    directory.mkdir()
    weights = {their_name(name): values for name, values in tiny_weights(model, seed).items()}
    stored = {name: w.astype(np.float16) if half and w.ndim == 2 else w for name, w in weights.items()}
    if shards == 1:
        save_file(dict(stored), directory / "model.safetensors")
    else:
        _save_shards(directory, stored, shards)
    write_json(directory / "config.json", config_of(model))
    write_json(directory / "generation_config.json", {"eos_token_id": [2, 3]})
    write_json(
        directory / "tokenizer_config.json",
        {"bos_token": "<|im_start|>", "eos_token": {"content": "<|endoftext|>"}, "chat_template": CHAT_TEMPLATE},
    )
    (directory / "tokenizer.json").write_bytes(tokenizer_file("byte_bpe"))
    return directory


def config_of(model: ModelDescription) -> dict[str, Any]:
    config: dict[str, Any] = {
        "architectures": [f"{model.architecture.capitalize()}ForCausalLM"],
        "model_type": model.architecture,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.layer_count,
        "num_attention_heads": model.query_heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.context_length,
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tied_embeddings,
        "eos_token_id": 2,
        "rope_theta": model.rope.theta,
        "torch_dtype": "float32",
        "transformers_version": "4.40.0",
        "rope_scaling": None,
    }
    scaling = model.to_table()["rope"]["scaling"]
    if scaling["kind"] != "none":
        rope = {key: value for key, value in scaling.items() if key != "kind"} | {"rope_type": scaling["kind"]}
        if "original_context_length" in rope:
            rope["original_max_position_embeddings"] = rope.pop("original_context_length")
        config["rope_scaling"] = rope
    return config


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values))


def change_json(path: Path, **changes: Any) -> None:
    write_json(path, json.loads(path.read_text()) | changes)


def their_name(name: str) -> str:
    if name == "lm_head.weight":
        return name
    for ours, theirs in (
        ("embed.", "embed_tokens."),
        ("attn_norm.", "input_layernorm."),
        ("mlp_norm.", "post_attention_layernorm."),
        *((f"attn.{part}.", f"self_attn.{part}_proj.") for part in "qkvo"),
        *((f"mlp.{part}.", f"mlp.{part}_proj.") for part in ("gate", "up", "down")),
    ):
        name = name.replace(ours, theirs)
    return f"model.{name}"


def _save_shards(directory: Path, stored: Arrays, shards: int) -> None:
    placed: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: stored[name] for name in list(stored)[shard::shards]}
        save_file(dict(part), directory / file)
        placed |= dict.fromkeys(part, file)
    write_json(directory / "model.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": placed})
