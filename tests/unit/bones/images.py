"""Weights in each stored form, as safetensors images in memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from unit.bones.reference import Floats, describe, random_weights

from tie.bones import Model

FORMS = ("f32", "bf16", "int8", "int4", "int4_min")
_NAMES = {"<f4": "F32", "<f2": "F16", "|i1": "I8", "|u1": "U8", "<u2": "BF16"}
Arrays = dict[str, NDArray[Any]]


def stored(name: str, values: Floats, form: str) -> tuple[Arrays, Floats]:
    """The tensors of one weight, and the values that they stand for."""
    if form == "f32" or values.ndim == 1:
        return {name: values.astype("<f4")}, values
    if form == "bf16":
        bits = (values.astype("<f4").view("<u4") + 0x8000 >> 16).astype("<u2")
        return {name: bits}, (bits.astype("<u4") << 16).view("<f4").astype(np.float64)
    blocks = values.reshape(len(values), -1, 32)
    if form == "int8":
        scale = (np.abs(blocks).max(-1, keepdims=True) / 127).astype("<f2")
        q = np.rint(blocks / scale).clip(-127, 127).astype("i1")
        return {f"{name}.q": q.reshape(values.shape), f"{name}.scale": scale[..., 0]}, _whole(q * _wide(scale))
    if form == "int4":
        scale = (np.abs(blocks).max(-1, keepdims=True) / 7).astype("<f2")
        q = (np.rint(blocks / scale) + 8).clip(0, 15).astype("u1")
        return {f"{name}.q": _packed(q), f"{name}.scale": scale[..., 0]}, _whole((q - 8.0) * _wide(scale))
    low = blocks.min(-1, keepdims=True).astype("<f2")
    scale = ((blocks.max(-1, keepdims=True) - low) / 15).astype("<f2")
    q = np.rint((blocks - low) / scale).clip(0, 15).astype("u1")
    parts = {f"{name}.q": _packed(q), f"{name}.scale": scale[..., 0], f"{name}.min": low[..., 0]}
    return parts, _whole(q * _wide(scale) + _wide(low))


def _wide(halves: NDArray[Any]) -> Floats:
    return halves.astype(np.float64)


def _whole(blocks: Floats) -> Floats:
    return blocks.reshape(len(blocks), -1)


def _packed(q: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (q[..., :16] | q[..., 16:] << 4).reshape(len(q), -1)


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


def build(form: str = "f32", seed: int = 0, **changes: Any) -> tuple[Model, dict[str, Any], dict[str, Floats]]:
    """A random model, its description, and the weights that its stored form stands for."""
    description = describe(**changes)
    arrays: Arrays = {}
    meant: dict[str, Floats] = {}
    for name, values in random_weights(description, seed).items():
        parts, meant[name] = stored(name, values, form)
        arrays |= parts
    with descriptors(image(arrays)) as fds:
        return Model(json.dumps(description), fds), description, meant
