"""Writes safetensors files of layout `panels-1`: sizes are known beforehand, so panels go straight to their places.

    u64 header length | JSON, padded to 64 bytes | matrices | scales and minima | vectors

Safetensors forbids holes. The size of each of these is a multiple of what it is aligned to (64, 32 and 4 bytes), so in
that order everything is aligned.
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

from tie.bundling.packing import pack
from tie.bundling.quantise import Stored
from tie.catalog.description import LAYOUT
from tie.catalog.layout import PANEL, PARTS, Form
from tie.catalog.safetensors_header import ELEMENT_BYTES, LENGTH_BYTES

ALIGNMENT: Final = 64
_SCALE_ALIGNMENT: Final = 32
_VECTOR_ALIGNMENT: Final = 4
MAX_FILE_BYTES: Final = 4 * 1024**3

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor that is to be written; `chunks` yields (first row, rows) in `form` until it is complete.

    A chunk of a matrix is whole panels, save the last.
    """

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
    suffix: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * ELEMENT_BYTES[self.dtype]

    @property
    def panel_bytes(self) -> int:
        return self.size_bytes // self.shape[0]

    @property
    def alignment(self) -> int:
        if len(self.shape) == 1:
            return _VECTOR_ALIGNMENT
        return _SCALE_ALIGNMENT if self.dtype == "F16" else ALIGNMENT


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
    parts = [part for tensor in planned for part in _parts(tensor)]
    header, offsets, size = _header(sorted(parts, key=lambda part: -part.alignment))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(fd, size)
        _write(fd, memoryview(header), 0)
        for tensor in planned:
            _write_tensor(fd, tensor, offsets, progress)
        os.fsync(fd)
        # What was written piecemeal is cached in small pages; read back it comes in large ones, which decode faster.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def _write_tensor(fd: int, tensor: PlannedTensor, offsets: dict[str, int], progress: Progress) -> None:
    is_matrix = len(tensor.shape) > 1
    rows = 0
    for first_row, stored in tensor.chunks():
        assert first_row == rows, "chunks come in order"
        assert rows % PANEL == 0, "a chunk that another follows is whole panels"
        rows += next(iter(stored.values())).shape[0]
        packed = pack(stored, tensor.form) if is_matrix else stored
        for part in _parts(tensor):
            values = packed[part.suffix]
            expected = values.shape[0] * part.panel_bytes if is_matrix else part.size_bytes
            assert values.nbytes == expected, "a panel has the size that the header says"
            _write(fd, _bytes(values), offsets[part.name] + first_row // PANEL * part.panel_bytes)
            progress(values.nbytes)
    assert rows == prod(tensor.shape[:-1]), "every row is written"


def _parts(tensor: PlannedTensor) -> list[_Part]:
    return [
        _Part(tensor.name + part.suffix, part.suffix, part.dtype, part.shape(tensor.shape))
        for part in PARTS[tensor.form]
    ]


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
