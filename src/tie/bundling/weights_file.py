"""Writes safetensors files of layout `rows-1`: sizes are known beforehand, so rows go straight to their places.

    u64 header length | JSON, padded to 64 bytes | tensors whose size is a multiple of 64 | the few others

Safetensors forbids holes; that order keeps every tensor on a 64-byte boundary that can be, and the rest on a multiple
of its element size.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tie.bundling.quantise import Stored
from tie.catalog.description import LAYOUT
from tie.catalog.layout import PARTS, Form, part_shape
from tie.catalog.safetensors_header import ELEMENT_BYTES, LENGTH_BYTES

ALIGNMENT: Final = 64
MAX_FILE_BYTES: Final = 4 * 1024**3

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor that is to be written; `chunks` yields (first row, rows) in `form` until it is complete."""

    name: str
    shape: tuple[int, ...]
    form: Form
    chunks: Callable[[], Iterator[tuple[int, Stored]]]

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in _parts(self))


@dataclass(frozen=True, slots=True)
class _Part:
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]


def split(planned: Sequence[PlannedTensor], most: int = MAX_FILE_BYTES) -> list[list[PlannedTensor]]:
    """Into files of at most `most` bytes, in order; a tensor is never split."""
    files: list[list[PlannedTensor]] = []
    room = -1
    for tensor in planned:
        if tensor.size_bytes > room:
            files.append([])
            room = most
        files[-1].append(tensor)
        room -= tensor.size_bytes
    return files


def write_weights(path: Path, planned: Sequence[PlannedTensor], progress: Progress) -> None:
    parts = sorted((part for tensor in planned for part in _parts(tensor)), key=_misalignment)
    header, offsets, size = _header(parts)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, size)
        _write(fd, memoryview(header), 0)
        for tensor in planned:
            _write_tensor(fd, tensor, offsets, progress)
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_tensor(fd: int, tensor: PlannedTensor, offsets: dict[str, int], progress: Progress) -> None:
    rows = 0
    for first_row, stored in tensor.chunks():
        assert first_row == rows, "chunks come in order"
        for suffix, dtype, covers in PARTS[tensor.form]:
            values = stored[suffix]
            row_bytes = part_shape(tensor.shape, covers)[-1] * ELEMENT_BYTES[dtype]
            assert values.nbytes == values.shape[0] * row_bytes, "a row has the size that the header says"
            _write(fd, _bytes(values), offsets[tensor.name + suffix] + first_row * row_bytes)
            progress(values.nbytes)
        rows += values.shape[0]
    assert rows == prod(tensor.shape[:-1]), "every row is written"


def _parts(tensor: PlannedTensor) -> list[_Part]:
    return [
        _Part(tensor.name + suffix, dtype, part_shape(tensor.shape, covers))
        for suffix, dtype, covers in PARTS[tensor.form]
    ]


def _misalignment(part: _Part) -> int:
    """0 for a size that leaves the next tensor aligned; else more, the smaller the power of two that divides it."""
    size = part.size_bytes
    return ALIGNMENT // min(ALIGNMENT, size & -size) - 1


def _header(parts: Sequence[_Part]) -> tuple[bytes, dict[str, int], int]:
    entries: dict[str, object] = {"__metadata__": {"layout": LAYOUT}}
    begins: dict[str, int] = {}
    end = 0
    for part in parts:
        begins[part.name], end = end, end + part.size_bytes
        offsets = [begins[part.name], end]
        entries[part.name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": offsets}
    text = json.dumps(entries, separators=(",", ":")).encode("ascii")
    text += b" " * (-(LENGTH_BYTES + len(text)) % ALIGNMENT)
    data = LENGTH_BYTES + len(text)
    return len(text).to_bytes(LENGTH_BYTES, "little") + text, {n: data + at for n, at in begins.items()}, data + end


def _bytes(values: npt.NDArray[np.generic]) -> memoryview:
    return np.ascontiguousarray(values).view(np.uint8).data.cast("B")


def _write(fd: int, data: memoryview, position: int) -> None:
    while data:
        count = os.pwrite(fd, data[: 1 << 30], position)
        data, position = data[count:], position + count
