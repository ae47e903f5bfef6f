"""What Bones rounds on its way, for the reference to round alike.

Quantised matrices multiply activations as signed bytes, matrices of bf16 multiply them as bf16; a cache of bf16 holds
keys and values so and takes queries and shares so. Everything else is f32, which the reference takes as exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Forms = str | Callable[[str], str]
"""The form in which every matrix is stored, or each by a part of its name."""
# As bones/cpu has them: elements of a quantised block, lanes of a panel, panels of a step and of a chunk of attention.
_BLOCK, _PANEL, _STEP, _CHUNK = 32, 16, 8, 16


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """How matrices are stored and what an engine's cache is."""

    forms: Forms = "f32"
    kv_dtype: str = "f32"
    block_size_tokens: int = 4

    def operand(self, x: Floats, matrix: str) -> Floats:
        """Activations as a matrix reads them."""
        form = form_of(self.forms, matrix)
        return bf16(x) if form == "bf16" else in_bytes(x) if form.startswith("int") else x

    def cached(self, x: Floats) -> Floats:
        """Keys and values as they are kept; queries, scaled, as they meet them."""
        return bf16(x) if self.kv_dtype == "bf16" else x

    def shares(self, scores: Floats) -> Floats:
        """Of each position, from scores `[..., positions]` that are -inf where nothing is seen."""
        highest = scores.max(axis=-1, keepdims=True)
        shares = np.exp(scores - highest)
        total = shares.sum(axis=-1, keepdims=True)
        if self.kv_dtype == "bf16":
            # A share is rounded while it is one of the highest score so far: of its step and those before in its chunk.
            near = self._running_highest(scores)
            seen = np.where(np.isfinite(scores), near, 0.0)
            shares = bf16(np.exp(scores - seen)) * np.exp(seen - highest)
        result: Floats = shares / total
        return result

    def _running_highest(self, scores: Floats) -> Floats:
        """Positions are taken in steps of eight panels, steps in chunks of sixteen; panels end where blocks do."""
        size, positions = self.block_size_tokens, np.arange(scores.shape[-1])
        panels = positions // size * -(-size // _PANEL) + positions % size // _PANEL
        highest = np.empty_like(scores)
        for step in np.unique(panels // _STEP):
            first_step = step * _STEP // _CHUNK * (_CHUNK // _STEP)
            so_far = (panels // _STEP >= first_step) & (panels // _STEP <= step)
            highest[..., panels // _STEP == step] = scores[..., so_far].max(axis=-1, keepdims=True)
        return highest


EXACT = Arithmetic()


def form_of(forms: Forms, matrix: str) -> str:
    return forms if isinstance(forms, str) else forms(matrix)


def bf16(x: NDArray[Any]) -> Floats:
    """The nearest bfloat16, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    rounded: Floats = (bits + 0x7FFF + (bits >> 16 & 1) & 0xFFFF0000).view(np.float32).astype(np.float64)
    return rounded


def in_bytes(x: Floats) -> Floats:
    """Blocks of signed bytes with a scale each, the largest magnitude being 127."""
    blocks = x.astype(np.float32).reshape(*x.shape[:-1], -1, _BLOCK)
    scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
    inverse = np.divide(np.float32(1), scale, where=scale > 0, out=np.zeros_like(scale))
    whole = np.rint(blocks * inverse).astype(np.float64) * scale
    result: Floats = whole.reshape(x.shape)
    return result
