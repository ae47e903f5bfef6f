"""A model as it arrives: what the rest of an import needs to know of a source, whichever kind of file it came from.

A tensor is a place in an open file and the form of its numbers there; its rows are read when they are converted, a
chunk at a time, so that memory stays bounded by a few chunks and not by the model.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tie.bundling.errors import SourceRejected
from tie.catalog.description import ModelDescription, TokenizerKind
from tie.catalog.layout import expected_tensors

SourceForm = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"]
Raw = npt.NDArray[np.uint8]

# Elements of K in a unit, and the bytes that the unit takes.
UNITS: Final[Mapping[SourceForm, tuple[int, int]]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
    "q4_1": (32, 20),
}


@dataclass(frozen=True, slots=True)
class SourceTensor:
    name: str  # by our names, see catalog.layout
    shape: tuple[int, ...]
    form: SourceForm
    file: str
    fd: int
    offset: int
    row_order: npt.NDArray[np.intp] | None = None
    """Row i of the model is row `row_order[i]` of the file; None where they are the same."""
    adds: float = 0.0
    """What the model has more than the file, in each number; of vectors only."""

    @property
    def rows(self) -> int:
        return prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        elements, size = UNITS[self.form]
        return self.shape[-1] // elements * size

    def read(self, begin: int, end: int) -> Raw:
        """Rows `begin..end` of the model as they stand in the file: `[rows, row_bytes]`."""
        if self.row_order is None:
            return self._read(begin, end)
        order = self.row_order[begin:end]  # rows move within a head, so what lies between them is little more
        low, high = int(order.min()), int(order.max()) + 1
        return self._read(low, high)[order - low]

    def _read(self, begin: int, end: int) -> Raw:
        raw = np.empty((end - begin, self.row_bytes), np.uint8)
        view, position = raw.data.cast("B"), self.offset + begin * self.row_bytes
        while view:
            count = os.preadv(self.fd, [view[: 1 << 30]], position)
            if count == 0:
                raise SourceRejected(self.file, f"tensor {self.name}: the file became shorter while it was read")
            view, position = view[count:], position + count
        return raw


@dataclass(frozen=True, slots=True)
class TokenizerAsset:
    kind: TokenizerKind
    data: bytes
    bos_token_id: int | None
    add_bos: bool
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """`model.layout` and `model.dtype` are placeholders until the import has decided on the forms."""

    name: str
    model: ModelDescription
    tokenizer: TokenizerAsset
    chat_template: str | None
    tensors: Mapping[str, SourceTensor]
    notes: tuple[str, ...] = ()
    """What was left out of the bundle, for the person who imports."""


def model_tensors(
    file: str, model: ModelDescription, tensors: Mapping[str, SourceTensor]
) -> Mapping[str, SourceTensor]:
    """Exactly the tensors of the model, in its order; refuses a missing one, an extra one and another shape."""
    left = dict(tensors)
    ordered: dict[str, SourceTensor] = {}
    for expected in expected_tensors(model):
        tensor = left.pop(expected.name, None)
        if tensor is None:
            raise SourceRejected(file, f"has no tensor for {expected.name}")
        if tensor.shape != expected.shape:
            shapes = f"{list(tensor.shape)}, the model needs {list(expected.shape)}"
            raise SourceRejected(tensor.file, f"tensor for {expected.name} has shape {shapes}")
        if not expected.is_matrix and UNITS[tensor.form][0] != 1:
            raise SourceRejected(tensor.file, f"tensor for {expected.name} is a vector in blocks")
        ordered[expected.name] = tensor
    if left:
        raise SourceRejected(file, f"tensor for {min(left)} does not belong to the model")
    return ordered
