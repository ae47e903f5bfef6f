"""Bones without a runtime around it: a model out of weights in memory, and sequences that grow side by side."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
from doubles.tiny_model import Weights, planned

from tie.bones import Batch, Engine, Model, Sampling
from tie.bundling.quantise import bf16_to_f32, decode, encode, f32_to_bf16
from tie.bundling.weights_file import write_weights
from tie.catalog.description import ModelDescription
from tie.catalog.layout import BLOCK as SCALED
from tie.catalog.layout import Form

BLOCK: Final = 16
GREEDY: Final = Sampling(temperature=0.0)
Floats = npt.NDArray[np.float32]


def bones_model(description: ModelDescription, weights: Weights, form: Form = "f32") -> Model:
    """Matrices in `form`, as an import stores them."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "model.safetensors"
        write_weights(path, planned(weights, form), lambda _: None)
        with path.open("rb") as file:
            return Model(description.to_json(), [file.fileno()])


def as_stored(weights: Weights, form: Form) -> Weights:
    """The numbers that `bones_model` computes with."""
    kept = {tensor.name: tensor.form for tensor in planned(weights, form)}
    return {
        name: values if values.ndim == 1 else decode(encode(values, kept[name]), kept[name])
        for name, values in weights.items()
    }


def rounded_input(form: Form) -> Callable[[Floats], Floats]:
    """What a matrix in `form` makes of its input: bf16, or bytes with a scale for each block of 32."""

    def rounded(x: Floats) -> Floats:
        if form == "f32":
            return x
        if form == "bf16" or x.shape[-1] % SCALED:
            return bf16_to_f32(f32_to_bf16(x))
        blocks = x.reshape(*x.shape[:-1], -1, SCALED)
        scale = np.abs(blocks).max(axis=-1, keepdims=True) / np.float32(127)
        inverse = np.divide(np.float32(1), scale, out=np.zeros_like(scale), where=scale > 0)
        result: Floats = (np.rint(blocks * inverse) * scale).reshape(x.shape)
        return result

    return rounded


class Rows:
    """Sequences, each with blocks of its own."""

    def __init__(self, model: Model, sequences: int, length: int, *, kv_dtype: Literal["f32", "bf16"] = "f32") -> None:
        self._per = -(-length // BLOCK)
        self._engine = Engine(
            model,
            block_count=sequences * self._per,
            block_size_tokens=BLOCK,
            kv_dtype=kv_dtype,
            threads=os.cpu_count() or 1,
        )
        self._contexts = [0] * sequences

    def step(self, tokens: dict[int, Sequence[int]], *, all_logits: bool = False) -> tuple[list[int], Floats | None]:
        """Greedy tokens after the given ones, and the logits there (or after each of them)."""
        rows = list(tokens)
        for row in rows:
            self._contexts[row] += len(tokens[row])
        tables = [np.arange(row * self._per, row * self._per + -(-self._contexts[row] // BLOCK)) for row in rows]
        outcome = self._engine.forward(
            Batch(
                token_ids=np.concatenate([np.array(tokens[row], np.int32) for row in rows]),
                query_lens=np.array([len(tokens[row]) for row in rows], np.int32),
                context_lens=np.array([self._contexts[row] for row in rows], np.int32),
                block_tables=np.concatenate(tables).astype(np.int32),
                block_table_offsets=np.cumsum([0, *map(len, tables)]).astype(np.int32),
                sample=np.ones(len(rows), np.bool_),
                sampling=[GREEDY] * len(rows),
                want_logits=not all_logits,
                want_all_logits=all_logits,
            )
        )
        assert not outcome.errors
        return outcome.tokens.tolist(), outcome.logits

    def generate(self, prompt: Sequence[int], count: int) -> list[int]:
        """`count` greedy tokens of row 0, each fed back by itself."""
        (token,), _ = self.step({0: prompt})
        output = [token]
        while len(output) < count:
            (token,), _ = self.step({0: [token]})
            output.append(token)
        return output


def relative_difference(found: Floats, expected: Floats, largest: float) -> float:
    return float(np.abs(found - expected).max()) / largest
