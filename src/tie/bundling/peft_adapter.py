"""A directory in PEFT's form as an adapter of a bundle (`catalog.adapters` has the form that it gets).

Scales are folded into B, ranks filled up with zeros to whole blocks. What is bf16 stays bf16 where that changes no
number (the usual scales are powers of two), else it becomes f32. Names and rows are those of Hugging Face, and so are
ours: nothing is permuted, whatever file the model itself came from.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np

from tie.bundling import convert, quantise
from tie.bundling.errors import SourceRejected
from tie.bundling.peft_config import PeftConfig, read_config
from tie.bundling.quantise import F32, NotFinite, Stored
from tie.bundling.source import SourceForm, SourceTensor
from tie.bundling.weights_file import PlannedTensor
from tie.catalog.adapters import A, B, adaptable
from tie.catalog.description import ModelDescription
from tie.catalog.layout import BLOCK
from tie.catalog.safetensors_header import Tensor, read_header

WEIGHTS: Final = "adapter_model.safetensors"
_FORMS: Final[Mapping[str, SourceForm]] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}
_NAME: Final = re.compile(
    r"base_model\.model\.((?:|model\.|model\.language_model\.|language_model\.model\.)"
    r"layers\.(0|[1-9][0-9]{0,3})\.(self_attn\.[qkvo]|mlp\.(?:gate|up|down))_proj)\.lora_([AB])\.weight"
)
_SIDES: Final[Mapping[str, str]] = {"A": A, "B": B}

AdapterForm = Literal["f32", "bf16"]


@dataclass(frozen=True, slots=True)
class _Factor:
    """One matrix of a pair: the file's, times `scale`, in the corner of zeros that fill `shape` up."""

    source: SourceTensor
    shape: tuple[int, int]
    scale: float = 1.0

    def values(self) -> F32:
        rows, columns = self.source.shape
        filled = np.zeros(self.shape, np.float32)
        with np.errstate(over="ignore", invalid="ignore"):  # looked at below
            filled[:rows, :columns] = convert.numbers(self.source) * np.float32(self.scale)
        if not np.isfinite(filled).all():
            raise SourceRejected(self.source.file, f"tensor {self.source.name} holds NaN, an infinity or too much")
        return filled

    def form(self) -> AdapterForm:
        """That of the file, unless the scale takes a number out of it."""
        if self.source.form != "bf16":
            return "f32"
        values = self.values()
        try:
            is_kept = (quantise.bf16_to_f32(quantise.f32_to_bf16(values)) == values).all()
        except NotFinite:
            is_kept = False
        return "bf16" if is_kept else "f32"

    def planned(self, name: str) -> PlannedTensor:
        form = self.form()

        def chunks() -> Iterator[tuple[int, Stored]]:
            yield 0, quantise.encode(self.values(), form)

        return PlannedTensor(name, self.shape, form, chunks)


def planned_adapter(directory: Path, model: ModelDescription, stack: ExitStack) -> list[PlannedTensor]:
    """Its tensors, which can be read until the stack is closed; in the model's order. Raises SourceRejected."""
    directory = directory.absolute()
    config = read_config(directory)
    file = f"{directory.name}/{WEIGHTS}"
    fd = _open(directory / WEIGHTS, file)
    stack.callback(os.close, fd)
    found = _factors(file, fd, config, model)
    planned = []
    for stem in adaptable(model):
        pair = {name: found[name] for name in (stem + A, stem + B) if name in found}
        if len(pair) == 1:
            raise SourceRejected(file, f"has only half of the pair for {stem}")
        planned += [factor.planned(name) for name, factor in pair.items()]
    if not planned:
        raise SourceRejected(file, "holds no pair of matrices")
    return planned


def _open(path: Path, file: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SourceRejected(file, "is missing") from None
    except OSError as error:
        raise SourceRejected(file, f"cannot be opened: {error.strerror}") from error


def _factors(file: str, fd: int, config: PeftConfig, model: ModelDescription) -> dict[str, _Factor]:
    """By our names."""
    matrices = adaptable(model)
    found: dict[str, _Factor] = {}
    for theirs, tensor in read_header(file, fd).tensors.items():
        module, stem, side = _named(file, theirs)
        if stem not in matrices:
            raise SourceRejected(file, f"tensor {theirs} bends a matrix that the model does not have")
        if stem + side in found:
            raise SourceRejected(file, f"tensor {theirs} is given twice")
        rank, (rows, k) = config.rank_of(module), matrices[stem]
        filled = -(-rank // BLOCK) * BLOCK
        if side == A:
            factor = _Factor(_source(file, fd, tensor, (rank, k)), (filled, k))
        else:
            factor = _Factor(_source(file, fd, tensor, (rows, rank)), (rows, filled), config.scale_of(module))
        found[stem + side] = factor
    return found


def _named(file: str, name: str) -> tuple[str, str, str]:
    """The module's path in the model that was trained, our stem, and the side."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise SourceRejected(file, f"tensor {name} is no part of a LoRA pair for a matrix of a layer")
    return match[1], f"layers.{match[2]}.{match[3].removeprefix('self_')}", _SIDES[match[4]]


def _source(file: str, fd: int, tensor: Tensor, shape: tuple[int, int]) -> SourceTensor:
    form = _FORMS.get(tensor.dtype)
    if form is None:
        raise SourceRejected(file, f"tensor {tensor.name} is {tensor.dtype}; only F32, F16 and BF16 are imported")
    if tensor.shape != shape:
        fault = f"has shape {list(tensor.shape)}, model and configuration say {list(shape)}"
        raise SourceRejected(file, f"tensor {tensor.name} {fault}")
    return SourceTensor(tensor.name, shape, form, file, fd, tensor.offset)
