"""Decides in which form each tensor of a source is stored, and converts it chunk by chunk.

`as-is` keeps every number: block-quantised rows keep every bit, bf16 stays bf16, and f16, which no kernel
reads, becomes f32. A requested type is applied to matrices; what is already in it is kept bit for bit too. Vectors are
always f32.
"""

from collections.abc import Iterator, Mapping
from typing import Final, Literal

import numpy as np

from tie.bundling import quantise
from tie.bundling.errors import SourceRejected
from tie.bundling.quantise import F32, NotFinite, Stored
from tie.bundling.source import Raw, SourceForm, SourceTensor
from tie.catalog.layout import BLOCK, PANEL, Form, panels_of

Requested = Literal["as-is", "f32", "bf16", "int8", "int4"]

KEPT: Final[Mapping[SourceForm, Form]] = {
    "f32": "f32",
    "f16": "f32",
    "bf16": "bf16",
    "q8_0": "int8",
    "q4_0": "int4",
    "q4_1": "int4_min",
}
_CHUNK_ELEMENTS: Final = 4 * 1024 * 1024
# With four bits these lose most: the first is looked up and, where tied, is the output head as well.
_KEPT_AT_EIGHT_BITS: Final = ("embed.weight", "lm_head.weight")


def target_form(tensor: SourceTensor, requested: Requested) -> Form:
    if len(tensor.shape) == 1:
        return "f32"
    kept = KEPT[tensor.form]
    if requested == "as-is":
        return kept
    if requested in ("f32", "bf16"):
        return requested
    if tensor.shape[-1] % BLOCK:
        return "bf16"
    if requested == "int8":
        return "int8"
    if kept in ("int4", "int4_min"):
        return kept
    return "int8" if tensor.name in _KEPT_AT_EIGHT_BITS else "int4"


def converted(tensor: SourceTensor, form: Form) -> Iterator[tuple[int, Stored]]:
    """(first row, rows in `form`) until the tensor is complete; whole panels each, save the last."""
    step = panels_of(max(1, _CHUNK_ELEMENTS // tensor.shape[-1])) * PANEL
    for begin in range(0, tensor.rows, step):
        raw = tensor.read(begin, min(begin + step, tensor.rows))
        try:
            stored = unpack(raw, tensor.form)
            _check_finite(stored)
            if KEPT[tensor.form] != form or tensor.adds:
                summed = quantise.decode(stored, KEPT[tensor.form]) + np.float32(tensor.adds)
                stored = quantise.encode(summed, form)
        except NotFinite:
            fault = f"tensor {tensor.name} holds NaN, an infinity or more than {form} can hold"
            raise SourceRejected(tensor.file, fault) from None
        yield begin, stored


def unpack(raw: Raw, form: SourceForm) -> Stored:
    """The file's rows, exactly, in the form of ours that holds the same numbers."""
    match form:
        case "f32":
            return {"": raw.view("<f4")}
        case "f16":
            return {"": raw.view("<f2").astype(np.float32)}
        case "bf16":
            return {"": raw.view("<u2")}
    headers = 4 if form == "q4_1" else 2
    unit = 34 if form == "q8_0" else headers + BLOCK // 2
    blocks = raw.reshape(raw.shape[0], -1, unit)
    rows, count = blocks.shape[:2]
    stored = {
        ".q": np.ascontiguousarray(blocks[:, :, headers:]).reshape(rows, -1),
        ".scale": np.ascontiguousarray(blocks[:, :, 0:2]).view("<f2").reshape(rows, count),
    }
    if form == "q8_0":
        stored[".q"] = stored[".q"].view(np.int8)
    if form == "q4_1":
        stored[".min"] = np.ascontiguousarray(blocks[:, :, 2:4]).view("<f2").reshape(rows, count)
    return stored


def numbers(tensor: SourceTensor) -> F32:
    """A whole tensor in f32; for the small ones that an import has to look into."""
    stored = unpack(tensor.read(0, tensor.rows), tensor.form)
    return quantise.decode(stored, KEPT[tensor.form]) + np.float32(tensor.adds)


def _check_finite(stored: Stored) -> None:
    for suffix, values in stored.items():
        if suffix == ".q":
            continue
        exponents_full = quantise.bf16_is_not_finite(values) if values.dtype == np.uint16 else ~np.isfinite(values)
        if exponents_full.any():
            raise NotFinite
