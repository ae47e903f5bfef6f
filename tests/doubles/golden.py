"""What the reference implementation computed, and the models it computed it for.

The files are made by tests/data/make_golden.py. A tiny model is not stored: its weights follow from its seed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from doubles.tiny_model import tiny_model

from tie.catalog.description import (
    LinearScaling,
    Llama3Scaling,
    ModelDescription,
    Rope,
    YarnScaling,
)

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "data" / "golden"

_VOCAB: Final = 160
# Positions of the golden prompts pass the scalings' original lengths, so that every branch of each is taken.
TINY_CASES: Final[dict[str, ModelDescription]] = {
    "grouped": tiny_model(vocab_size=_VOCAB),
    "tied": tiny_model(vocab_size=_VOCAB, kv_heads=4, head_dim=32, tied_embeddings=True),
    "one-kv-head": tiny_model(vocab_size=_VOCAB, hidden_size=96, kv_heads=1, head_dim=64),
    "head-80": tiny_model(vocab_size=_VOCAB, hidden_size=96, query_heads=6, kv_heads=3, head_dim=80, norm_eps=1e-6),
    "head-128": tiny_model(vocab_size=_VOCAB, query_heads=8, kv_heads=1, head_dim=128, layer_count=1),
    "nine-three": tiny_model(
        vocab_size=_VOCAB,
        hidden_size=144,
        query_heads=9,
        kv_heads=3,
        layer_count=4,
        rope=Rope(500_000.0, 16),
        tied_embeddings=True,
    ),
    "uneven-width": tiny_model(vocab_size=_VOCAB, hidden_size=72, intermediate_size=100),
    "linear": tiny_model(vocab_size=_VOCAB, rope=Rope(10_000.0, 16, LinearScaling(4.0))),
    "llama3": tiny_model(vocab_size=_VOCAB, head_dim=32, rope=Rope(500_000.0, 32, Llama3Scaling(8.0, 1.0, 4.0, 32))),
    "yarn": tiny_model(vocab_size=_VOCAB, head_dim=32, rope=Rope(10_000.0, 32, YarnScaling(4.0, 16, 32.0, 1.0))),
    "yarn-attention-factor": tiny_model(
        vocab_size=_VOCAB, head_dim=64, rope=Rope(100_000.0, 64, YarnScaling(8.0, 32, 16.0, 2.0, 1.25))
    ),
    "mistral": tiny_model(vocab_size=_VOCAB, architecture="mistral", head_dim=32, rope=Rope(1_000_000.0, 32)),
    "qwen2": tiny_model(vocab_size=_VOCAB, architecture="qwen2", attention_bias=True, tied_embeddings=True),
}
TINY_SEED: Final = 2026


@dataclass(frozen=True, slots=True)
class TinyPrompt:
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    logits: npt.NDArray[np.float32]  # [positions, vocabulary]


@dataclass(frozen=True, slots=True)
class Chat:
    messages: list[dict[str, str]]
    prompt: list[int]
    output: list[int]  # greedy, 48 of them: a token that ends the answer did not end it
    gaps: list[float]  # between the two largest logits, where each output token was chosen


@dataclass(frozen=True, slots=True)
class LogitSample:
    """Logits after a chat's prompt: the 64 largest, and 64 that are spread over the vocabulary."""

    chat: int
    ids: npt.NDArray[np.int32]
    values: npt.NDArray[np.float32]
    max_magnitude: float


def tiny_prompts(case: str) -> list[TinyPrompt]:
    with np.load(DIRECTORY / "tiny.npz") as stored:
        count = sum(name.startswith(f"{case}/") and name.endswith("/tokens") for name in stored.files)
        return [
            TinyPrompt(
                tuple(stored[f"{case}/{index}/tokens"].tolist()),
                tuple(stored[f"{case}/{index}/positions"].tolist()),
                stored[f"{case}/{index}/logits"],
            )
            for index in range(count)
        ]


def smollm2_chats() -> list[Chat]:
    return [Chat(**chat) for chat in _json("smollm2.json")["chats"]]


def smollm2_logits() -> list[LogitSample]:
    with np.load(DIRECTORY / "smollm2.npz") as stored:
        return [
            LogitSample(chat, stored["ids"][row], stored["values"][row], float(stored["max_magnitude"][row]))
            for row, chat in enumerate(stored["chats"].tolist())
        ]


def encodings() -> list[dict[str, Any]]:
    """`{tokenizer, rule, text, ids}`: tokenizer is "smollm2" or "tiny"."""
    found: list[dict[str, Any]] = _json("encodings.json")["encodings"]
    return found


def _json(name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((DIRECTORY / name).read_text())
    return values
