"""Numbers from one form into another: rows of f32, bf16 (as uint16 bits) and the block-quantised forms of `layout`.

Everything works on whole arrays of rows `[rows, K]`, as sources have them; `packing` makes panels of them for a bundle.
Blocks are 32 elements along K: of int8 a signed byte each, of int4 16 bytes with element j low and j + 16 high. A
block's scale (and minimum) is rounded to f16 before its integers are chosen, so that they fit the scale that is stored.
"""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tie.catalog.layout import BLOCK, Form

F32 = npt.NDArray[np.float32]
Stored = Mapping[str, npt.NDArray[np.generic]]  # suffix of the tensor's name → array


class NotFinite(Exception):
    """A weight, or the scale of its block, is NaN, infinite or beyond what the form can hold."""


def bf16_to_f32(bits: npt.NDArray[np.uint16]) -> F32:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_is_not_finite(bits: npt.NDArray[np.generic]) -> npt.NDArray[np.bool_]:
    exponents = bits.view(np.uint16) & np.uint16(0x7F80)
    full: npt.NDArray[np.bool_] = exponents == 0x7F80
    return full


def f32_to_bf16(values: F32) -> npt.NDArray[np.uint16]:
    """Rounds to nearest, ties to even; refuses a value that would round to infinity."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    if bf16_is_not_finite(rounded).any():
        raise NotFinite
    return rounded


def encode(values: F32, form: Form) -> Stored:
    """Quantises (or merely stores) rows of finite numbers."""
    if not np.isfinite(values).all():
        raise NotFinite
    match form:
        case "f32":
            return {"": np.ascontiguousarray(values)}
        case "bf16":
            return {"": f32_to_bf16(values)}
        case "int8":
            return _encode_int8(values)
        case "int4":
            return _encode_int4(values)
        case "int4_min":
            return _encode_int4_min(values)


def decode(stored: Stored, form: Form) -> F32:
    """The numbers that the stored form stands for: what Bones computes with, in f32."""
    if form == "f32":
        return stored[""].astype(np.float32)
    if form == "bf16":
        return bf16_to_f32(stored[""].astype(np.uint16))
    scale = stored[".scale"].astype(np.float32)[:, :, None]
    if form == "int8":
        q = stored[".q"].astype(np.float32).reshape(*scale.shape[:2], BLOCK)
        return _rows(q * scale)
    q = unpack_nibbles(stored[".q"].astype(np.uint8)).astype(np.float32)
    if form == "int4":
        return _rows((q - 8) * scale)
    return _rows(q * scale + stored[".min"].astype(np.float32)[:, :, None])


def pack_nibbles(q: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """`[rows, blocks, 32]` of 0..15 → `[rows, K/2]`: byte j holds element j low, element j + 16 high."""
    packed = q[:, :, : BLOCK // 2] | (q[:, :, BLOCK // 2 :] << np.uint8(4))
    return packed.reshape(q.shape[0], -1)


def unpack_nibbles(packed: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    halves = packed.reshape(packed.shape[0], -1, BLOCK // 2)
    return np.concatenate([halves & np.uint8(15), halves >> np.uint8(4)], axis=2)


def _encode_int8(values: F32) -> Stored:
    blocks = _blocks(values)
    scale = _f16(np.abs(blocks).max(axis=2) / np.float32(127))
    q = np.clip(_divide(blocks, scale), -127, 127).astype(np.int8)
    return {".q": q.reshape(values.shape), ".scale": scale}


def _encode_int4(values: F32) -> Stored:
    """The value of largest magnitude becomes -8; then the scale is fitted once more to the integers chosen."""
    blocks = _blocks(values)
    peak = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    scale = _f16(peak / np.float32(-8))
    q = np.clip(_divide(blocks, scale), -8, 7)
    energy = (q * q).sum(axis=2)
    fitted = _f16(np.divide((q * blocks).sum(axis=2), energy, out=scale.astype(np.float32), where=energy > 0))
    return {".q": pack_nibbles((q + 8).astype(np.uint8)), ".scale": fitted}


def _encode_int4_min(values: F32) -> Stored:
    blocks = _blocks(values)
    low = _f16(blocks.min(axis=2))
    shifted = blocks - low.astype(np.float32)[:, :, None]
    scale = _f16(shifted.max(axis=2) / np.float32(15))
    q = np.clip(_divide(shifted, scale), 0, 15).astype(np.uint8)
    return {".q": pack_nibbles(q), ".scale": scale, ".min": low}


def _divide(blocks: F32, scale: npt.NDArray[np.float16]) -> F32:
    """Rounded quotients; a block whose scale is zero (all of it is, to f16) becomes zeros."""
    wide = scale.astype(np.float32)
    inverse = np.divide(np.float32(1), wide, out=np.zeros_like(wide), where=wide != 0)
    quotients: F32 = np.rint(blocks * inverse[:, :, None])
    return quotients


def _f16(values: F32) -> npt.NDArray[np.float16]:
    if np.abs(values).max(initial=0) > np.finfo(np.float16).max:
        raise NotFinite
    return values.astype(np.float16)


def _blocks(values: F32) -> F32:
    return values.reshape(values.shape[0], -1, BLOCK)


def _rows(blocks: F32) -> F32:
    return blocks.reshape(blocks.shape[0], -1)
