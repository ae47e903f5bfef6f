"""What the reference implementation computed for the models of `golden_cases` and for SmolLM2.

The files are made by tests/data/make_golden.py. A tiny model is not stored: its weights follow from its seed.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from doubles.golden_cases import TINY_CASES as TINY_CASES

DIRECTORY: Final = Path(__file__).resolve().parents[1] / "data" / "golden"

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
