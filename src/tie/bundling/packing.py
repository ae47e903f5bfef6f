"""Rows of numbers into panels and back (see `catalog.layout`), bit for bit.

`quantise` and `convert` work on rows, because sources have rows and blocks run along them; bundles hold panels. What a
chunk of rows becomes is a run of whole panels, so only the last chunk of a matrix may end within one.
"""

from math import prod

import numpy as np
import numpy.typing as npt

from tie.bundling.quantise import Stored
from tie.catalog.layout import PANEL, PARTS, Form, Part, panels_of

_SIGN: int = 0x80  # q + 128 as a byte is q with its sign bit flipped


def pack(rows: Stored, form: Form) -> Stored:
    """`[rows, …]` of each part → its panels."""
    return {part.suffix: _panels(_unsigned(rows[part.suffix]), part) for part in PARTS[form]}


def unpack(panels: Stored, form: Form, shape: tuple[int, ...]) -> Stored:
    """What `pack` was given for a matrix of `shape`."""
    rows = {part.suffix: _rows(panels[part.suffix], part, shape) for part in PARTS[form]}
    if form == "int8":
        rows[".q"] = (rows[".q"].view(np.uint8) ^ np.uint8(_SIGN)).view(np.int8)
    return rows


def _unsigned(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return values.view(np.uint8) ^ np.uint8(_SIGN) if values.dtype == np.int8 else values


def _panels(values: npt.NDArray[np.generic], part: Part) -> npt.NDArray[np.generic]:
    count, width = values.shape
    lane, step = _split(part)
    panels, steps = panels_of(count), -(-width // prod(step))
    whole = np.zeros((panels * PANEL, steps * prod(step)), values.dtype)
    whole[:count, :width] = values
    return np.ascontiguousarray(np.moveaxis(whole.reshape(panels, PANEL, steps, *step), 1, lane))


def _rows(panels: npt.NDArray[np.generic], part: Part, shape: tuple[int, ...]) -> npt.NDArray[np.generic]:
    lane, step = _split(part)
    whole = np.moveaxis(panels, lane, 1).reshape(panels.shape[0] * PANEL, -1)
    width = shape[1] * prod(step) // part.covers
    return np.ascontiguousarray(whole[: shape[0], :width])


def _split(part: Part) -> tuple[int, tuple[int, ...]]:
    """Which axis of the panels counts lanes, and what a row has of each step."""
    at = part.inner.index(PANEL)
    return 2 + at, part.inner[:at] + part.inner[at + 1 :]
