"""Weights in each stored form of layout `panels-1`, as safetensors images in memory.

Written from the layout's description with no help of the import's, so that the two check each other through Bones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from unit.bones.arithmetic import Floats, Forms, form_of
from unit.bones.reference import describe, random_weights

from tie.bones import Model

FORMS = ("f32", "bf16", "int8", "int4", "int4_min")
_NAMES = {"<f4": "F32", "<f2": "F16", "|i1": "I8", "|u1": "U8", "<u2": "BF16"}
_LANES = 16
Arrays = dict[str, NDArray[Any]]


def stored(name: str, values: Floats, form: str) -> tuple[Arrays, Floats]:
    """The tensors of one weight, and the values that they stand for."""
    if values.ndim == 1:
        return {name: values.astype("<f4")}, values
    if form == "f32":
        return {name: side_by_side(values.astype("<f4"), ())}, values
    if form == "bf16":
        bits = (values.astype("<f4").view("<u4") + 0x8000 >> 16).astype("<u2")
        meant = (bits.astype("<u4") << 16).view("<f4").astype(np.float64)
        return {name: side_by_side(np.pad(bits, ((0, 0), (0, values.shape[1] % 2))), (2,))}, meant
    blocks = values.reshape(len(values), -1, 32)
    if form == "int8":
        scale = (np.abs(blocks).max(-1, keepdims=True) / 127).astype("<f2")
        q = _steps(blocks, scale).clip(-127, 127)
        bytes_of = side_by_side((q + 128).astype("u1").reshape(values.shape), (4,))
        return {f"{name}.q": bytes_of, f"{name}.scale": _scales(scale)}, _whole(q * _wide(scale))
    if form == "int4":
        scale = (np.abs(blocks).max(-1, keepdims=True) / 7).astype("<f2")
        q = (_steps(blocks, scale) + 8).clip(0, 15).astype("u1")
        return {f"{name}.q": _packed(q), f"{name}.scale": _scales(scale)}, _whole((q - 8.0) * _wide(scale))
    low = blocks.min(-1, keepdims=True).astype("<f2")
    scale = ((blocks.max(-1, keepdims=True) - low) / 15).astype("<f2")
    q = _steps(blocks - low, scale).clip(0, 15).astype("u1")
    parts = {f"{name}.q": _packed(q), f"{name}.scale": _scales(scale), f"{name}.min": _scales(low)}
    return parts, _whole(q * _wide(scale) + _wide(low))


def side_by_side(rows: NDArray[Any], word: tuple[int, ...]) -> NDArray[Any]:
    """`[rows, K]` → `[panels, words, 16, *word]`; rows that the last panel lacks are zero."""
    filled = np.pad(rows, ((0, -len(rows) % _LANES), (0, 0)))
    panels = filled.reshape(-1, _LANES, rows.shape[1] // int(np.prod(word)), *word)
    return np.ascontiguousarray(panels.swapaxes(1, 2))


def _scales(halves: NDArray[Any]) -> NDArray[Any]:
    return side_by_side(halves[..., 0], ())


def _steps(blocks: Floats, scale: NDArray[Any]) -> Floats:
    result: Floats = np.rint(np.divide(blocks, scale, where=scale > 0, out=np.zeros_like(blocks)))
    return result


def _wide(halves: NDArray[Any]) -> Floats:
    return halves.astype(np.float64)


def _whole(blocks: Floats) -> Floats:
    return blocks.reshape(len(blocks), -1)


def _packed(q: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`[rows, blocks, 32]` → `[panels, blocks, 4, 16, 4]`: of each block, four words for each row."""
    nibbles = (q[..., :16] | q[..., 16:] << 4).reshape(len(q), -1)
    words = side_by_side(nibbles, (4,))
    return np.ascontiguousarray(words.reshape(len(words), -1, 4, _LANES, 4))


def image(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """A safetensors file; data begins on 64 bytes, larger elements first."""
    entries, data = {}, b""
    for name, array in sorted(arrays.items(), key=lambda item: -item[1].itemsize):
        raw = array.tobytes()
        entries[name] = {
            "dtype": _NAMES[array.dtype.str],
            "shape": array.shape,
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    header = json.dumps(entries).encode()
    header += b" " * (-(8 + len(header)) % 64)
    return len(header).to_bytes(8, "little") + header + data


@contextmanager
def descriptors(*images: bytes) -> Iterator[list[int]]:
    """The images as files in memory."""
    fds = []
    try:
        for content in images:
            fds.append(os.memfd_create("weights"))
            os.write(fds[-1], content)
        yield fds
    finally:
        for fd in fds:
            os.close(fd)


def model_of(
    description: Mapping[str, Any], weights: Mapping[str, Floats], forms: Forms = "f32"
) -> tuple[Model, dict[str, Floats]]:
    """A model, and the weights that their stored form stands for."""
    arrays: Arrays = {}
    meant: dict[str, Floats] = {}
    for name, values in weights.items():
        parts, meant[name] = stored(name, values, form_of(forms, name))
        arrays |= parts
    with descriptors(image(arrays)) as fds:
        return Model(json.dumps(description), fds), meant


def build(forms: Forms = "f32", seed: int = 0, **changes: Any) -> tuple[Model, dict[str, Any], dict[str, Floats]]:
    """A random model, its description, and the weights that its stored form stands for."""
    description = describe(**changes)
    model, meant = model_of(description, random_weights(description, seed), forms)
    return model, description, meant
