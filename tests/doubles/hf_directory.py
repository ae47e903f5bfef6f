"""Hugging Face directories, written for tests from tiny models; any file of one may then be replaced."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from doubles.hf_config import config_of
from doubles.hf_names import their_weights
from doubles.tiny_model import CHAT_TEMPLATE, tiny_weights, tokenizer_file
from safetensors.numpy import save_file

from tie.catalog.description import ModelDescription

Arrays = Mapping[str, npt.NDArray[np.generic]]


def make_hf_directory(
    directory: Path,
    model: ModelDescription,
    seed: int = 0,
    *,
    shards: int = 1,
    half: bool = False,
    sentencepiece: bytes | None = None,
) -> Path:
    """`half` stores matrices as f16; the tokenizer is byte-level BPE unless a `tokenizer.model` is given."""
    directory.mkdir()
    weights = their_weights(model, tiny_weights(model, seed))
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
    if sentencepiece is None:
        (directory / "tokenizer.json").write_bytes(tokenizer_file("byte_bpe"))
    else:
        (directory / "tokenizer.model").write_bytes(sentencepiece)
        names = {"bos_token": "<s>", "eos_token": "</s>"}
        write_json(directory / "tokenizer_config.json", names | {"chat_template": CHAT_TEMPLATE})
    return directory


def write_json(path: Path, values: Any) -> None:
    path.write_text(json.dumps(values))


def change_json(path: Path, **changes: Any) -> None:
    write_json(path, json.loads(path.read_text()) | changes)


def _save_shards(directory: Path, stored: Arrays, shards: int) -> None:
    placed: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {name: stored[name] for name in list(stored)[shard::shards]}
        save_file(dict(part), directory / file)
        placed |= dict.fromkeys(part, file)
    write_json(directory / "model.safetensors.index.json", {"metadata": {"total_size": 1}, "weight_map": placed})
