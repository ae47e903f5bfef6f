"""Panels against the layout's own words, byte by byte and element by element, and back."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.bundling.packing import pack, unpack
from tie.bundling.quantise import Stored, decode, encode
from tie.bundling.weights_file import PlannedTensor, write_weights
from tie.catalog.layout import PARTS, Form

FORMS: list[Form] = list(PARTS)
BLOCKED = ("int8", "int4", "int4_min")
ROWS = (1, 2, 15, 16, 17, 33)


def random(rows: int, columns: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((rows, columns), np.float32)


def spans(form: Form) -> tuple[int, ...]:
    return (32, 64, 96) if form in BLOCKED else (1, 2, 3, 31, 32, 33)


def at(panels: npt.NDArray[Any], *index: int) -> Any:
    return panels[index].item()


def number(stored: Stored, form: Form, row: int, k: int) -> float:
    """Element [row, k], read as the layout's table has it."""
    p, lane, b = row // 16, row % 16, k // 32
    if form == "f32":
        return float(at(stored[""], p, k, lane))
    if form == "bf16":
        return float((np.uint32(at(stored[""], p, k // 2, lane, k % 2)) << np.uint32(16)).view(np.float32))
    scale = np.float32(at(stored[".scale"], p, b, lane))
    if form == "int8":
        return float(scale * np.float32(at(stored[".q"], p, k // 4, lane, k % 4) - 128))
    within = k % 32
    byte = at(stored[".q"], p, b, within % 16 // 4, lane, within % 4)
    q = np.float32(byte >> 4 if within >= 16 else byte & 15)
    if form == "int4":
        return float(scale * (q - np.float32(8)))
    return float(q * scale + np.float32(at(stored[".min"], p, b, lane)))


@pytest.mark.parametrize("form", FORMS)
def test_every_element_is_where_the_layout_says(form: Form) -> None:
    for rows in ROWS:
        for columns in spans(form):
            stored = encode(random(rows, columns), form)
            wanted, packed = decode(stored, form), pack(stored, form)
            found = [[number(packed, form, row, k) for k in range(columns)] for row in range(rows)]
            assert np.array_equal(np.array(found, np.float32), wanted), (rows, columns)


@pytest.mark.parametrize("form", FORMS)
def test_parts_have_the_shapes_and_types_that_the_catalog_checks(form: Form) -> None:
    kinds = {"F32": "float32", "BF16": "uint16", "F16": "float16", "U8": "uint8"}
    for rows in ROWS:
        for columns in spans(form):
            packed = pack(encode(random(rows, columns), form), form)
            assert {suffix: (part.shape, part.dtype.name) for suffix, part in packed.items()} == {
                part.suffix: (part.shape((rows, columns)), kinds[part.dtype]) for part in PARTS[form]
            }
            assert all(part.flags.c_contiguous for part in packed.values())


@pytest.mark.parametrize("form", FORMS)
def test_what_a_matrix_does_not_have_is_zero_bytes(form: Form) -> None:
    columns = 64 if form in BLOCKED else 3
    full = pack(encode(random(17, columns), form), form)
    for part in PARTS[form]:
        lanes = np.moveaxis(full[part.suffix][1], 1 + part.inner.index(16), 0)
        assert not lanes[1:].any(), part
        assert lanes[0].any(), part
    if form == "bf16":
        assert not full[""][:, 1, :, 1].any(), "the word that K ends in"


def columns_of(*rows: list[int]) -> bytes:
    """Bytes of 16 lanes, of which the first are given and the others are empty."""
    width = len(rows[0])
    return b"".join(map(bytes, rows)) + bytes(width * (16 - len(rows)))


def test_bytes_of_f32() -> None:
    packed = pack({"": np.array([[1.0, -2.0], [0.5, 0.0]], "<f4")}, "f32")
    first = columns_of([0, 0, 0x80, 0x3F], [0, 0, 0, 0x3F])
    second = columns_of([0, 0, 0, 0xC0], [0, 0, 0, 0])
    assert packed[""].tobytes() == first + second


def test_bytes_of_bf16() -> None:
    packed = pack({"": np.array([[0x3F80, 0xC000, 0x4040], [0x0102, 0x0304, 0x0506]], "<u2")}, "bf16")
    first = columns_of([0x80, 0x3F, 0x00, 0xC0], [0x02, 0x01, 0x04, 0x03])
    second = columns_of([0x40, 0x40, 0, 0], [0x06, 0x05, 0, 0])
    assert packed[""].tobytes() == first + second


def test_bytes_of_int8() -> None:
    """The least and the greatest q, and the words in their order; 1.5 is 0x3E00 as f16."""
    q = np.zeros((2, 32), np.int8)
    q[0, :5] = [-128, -1, 0, 127, 5]
    q[1, 28:] = [1, 2, 3, 4]
    packed = pack({".q": q, ".scale": np.array([[1.5], [-2.0]], "<f2")}, "int8")
    words = [columns_of([128] * 4, [128] * 4)] * 8
    words[0] = columns_of([0, 127, 128, 255], [128] * 4)
    words[1] = columns_of([133, 128, 128, 128], [128] * 4)
    words[7] = columns_of([128] * 4, [129, 130, 131, 132])
    assert packed[".q"].tobytes() == b"".join(words)
    assert packed[".scale"].tobytes() == columns_of([0x00, 0x3E], [0x00, 0xC0])


@pytest.mark.parametrize("form", ["int4", "int4_min"])
def test_bytes_of_int4(form: Form) -> None:
    """Row 0 has 0..15, then 15..0; row 1 has 1 in its first element and 2 in its seventeenth."""
    first = [low | high << 4 for low, high in zip(range(16), reversed(range(16)), strict=True)]
    second = [0x21, *[0] * 15]
    rows = {".q": np.array([first, second], np.uint8), ".scale": np.array([[1.5], [-2.0]], "<f2")}
    rows |= {".min": np.array([[0.0], [1.0]], "<f2")} if form == "int4_min" else {}
    packed = pack(rows, form)
    words = [columns_of(first[4 * j :][:4], second[4 * j :][:4]) for j in range(4)]
    assert packed[".q"].tobytes() == b"".join(words)
    assert first[:4] == [0xF0, 0xE1, 0xD2, 0xC3]
    assert packed[".scale"].tobytes() == columns_of([0x00, 0x3E], [0x00, 0xC0])
    if form == "int4_min":
        assert packed[".min"].tobytes() == columns_of([0x00, 0x00], [0x00, 0x3C])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_come_back_bit_for_bit(data: st.DataObject) -> None:
    """Any bits: what a source has may be quantised in ways that are not ours."""
    form = data.draw(st.sampled_from(FORMS))
    rows, steps = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 5))
    columns = 32 * steps if form in BLOCKED else data.draw(st.integers(1, 70))
    bits = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    widths: dict[str, tuple[int, Any]] = {
        "f32": (columns, "<f4"), "bf16": (columns, "<u2"), "int8": (columns, "i1"), "int4": (columns // 2, "u1"),
    }  # fmt: skip
    width, kind = widths[form.removesuffix("_min")]
    stored: dict[str, npt.NDArray[Any]] = {}
    for part in PARTS[form]:
        shape, dtype = ((rows, columns // 32), "<f2") if part.dtype == "F16" else ((rows, width), kind)
        size = shape[0] * shape[1] * np.dtype(dtype).itemsize
        stored[part.suffix] = np.frombuffer(bits.bytes(size), dtype).reshape(shape)
    back = unpack(pack(stored, form), form, (rows, columns))
    assert back.keys() == stored.keys()
    for suffix, values in stored.items():
        assert back[suffix].dtype == values.dtype
        assert back[suffix].shape == values.shape
        assert back[suffix].tobytes() == values.tobytes()


def planned(form: Form, values: npt.NDArray[np.float32], *ends: int) -> PlannedTensor:
    """A matrix that comes in chunks which end at these rows."""

    def chunks() -> Iterator[tuple[int, Stored]]:
        for begin, end in zip((0, *ends), ends, strict=False):
            yield begin, encode(values[begin:end], form)

    return PlannedTensor("w", values.shape, form, chunks)


@pytest.mark.parametrize("form", FORMS)
def test_a_matrix_in_chunks_of_panels_is_the_same_file(tmp_path: Path, form: Form) -> None:
    values = random(70, 64)
    write_weights(tmp_path / "whole", [planned(form, values, 70)], lambda count: None)
    write_weights(tmp_path / "chunks", [planned(form, values, 16, 64, 70)], lambda count: None)
    whole = (tmp_path / "whole").read_bytes()
    assert whole == (tmp_path / "chunks").read_bytes()
    packed = pack(encode(values, form), form)
    assert whole.endswith(b"".join(packed[part.suffix].tobytes() for part in PARTS[form]))


@pytest.mark.parametrize("ends", [(8, 70), (16, 60), (17, 33, 70), (16, 64)])
def test_chunks_that_end_within_a_panel_or_too_early_are_not_written(tmp_path: Path, ends: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        write_weights(tmp_path / "w", [planned("f32", random(70, 3), *ends)], lambda count: None)


def test_the_header_tells_the_layout_and_is_padded(tmp_path: Path) -> None:
    write_weights(tmp_path / "w", [planned("int8", random(3, 32), 3)], lambda count: None)
    data = (tmp_path / "w").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert (8 + length) % 64 == 0
    header = json.loads(data[8 : 8 + length])
    assert header["__metadata__"] == {"layout": "panels-1"}
    assert header["w.q"] == {"dtype": "U8", "shape": [1, 8, 16, 4], "data_offsets": [0, 512]}
    assert header["w.scale"] == {"dtype": "F16", "shape": [1, 1, 16], "data_offsets": [512, 544]}
