import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.catalog.errors import BundleRejected
from tie.catalog.safetensors_header import MAX_HEADER_BYTES, SafetensorsHeader, read_header

FILE = "weights/00001.safetensors"


@contextmanager
def memory_file(data: bytes) -> Iterator[int]:
    fd = os.memfd_create("safetensors")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


def parse(data: bytes) -> SafetensorsHeader:
    with memory_file(data) as fd:
        return read_header(FILE, fd)


def image(header: Any, data_bytes: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(data_bytes)


def tensor(begin: int, end: int, shape: list[Any] | None = None, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [(end - begin) // 4] if shape is None else shape, "data_offsets": [begin, end]}


GOOD = {"__metadata__": {"layout": "rows-1"}, "b": tensor(16, 24), "a": tensor(0, 16, [2, 2])}


def test_a_header_is_read() -> None:
    header = parse(image(GOOD, 24))
    begin = 8 + len(json.dumps(GOOD))
    assert header.metadata == {"layout": "rows-1"}
    assert (header.tensors["a"].shape, header.tensors["a"].offset) == ((2, 2), begin)
    assert (header.tensors["b"].offset, header.tensors["b"].size_bytes) == (begin + 16, 8)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "too short"),
        (b"\x10\x00\x00", "too short"),
        ((2**63).to_bytes(8, "little") + b"{}", f"more than {MAX_HEADER_BYTES}"),
        ((2**64 - 1).to_bytes(8, "little") + b"{}", f"more than {MAX_HEADER_BYTES}"),
        ((100).to_bytes(8, "little") + b"{}", "claims 100 bytes, but only 2 follow"),
        (image(b"[]", 0), "does not begin with {"),
        (image(b"", 0), "does not begin with {"),
        (image(b" {}", 0), "does not begin with {"),
        (image(b"{\xff}", 0), "is not valid JSON"),
        (image(b'{"a": 1', 0), "is not valid JSON"),
        (image(b'{"a": ' + b"[" * 100_000, 0), "is nested too deeply"),
        (image(b'{"a": ' + b"9" * 10_000 + b"}", 0), "is not valid JSON"),
        (image(b'{"a": NaN}', 0), "holds NaN or an infinity"),
        (image(b'{"a": {"dtype": "F32", "dtype": "I8"}}', 0), "gives a key twice"),
        (image(json.dumps(GOOD)[:-1].encode() + b', "a": 1}', 24), "gives a key twice"),
        (image({"__metadata__": {"a": 1}}, 0), "__metadata__ is not a table of strings"),
        (image({"a": 1}, 0), "tensor a does not have exactly"),
        (image({"a": tensor(0, 4) | {"more": 1}}, 4), "tensor a does not have exactly"),
        (image({"": tensor(0, 4)}, 4), "name of 0 characters"),
        (image({"a\x00b": tensor(0, 4)}, 4), "name of 3 characters that is not a plain name"),
        (image({"a" * 300: tensor(0, 4)}, 4), "name of 300 characters"),
        (image({"a": tensor(0, 4, dtype="F31")}, 4), "dtype that is not known"),
        (image({"a": tensor(0, 4, dtype=["F32"])}, 4), "dtype that is not known"),
        (image({"a": tensor(0, 4, [-1])}, 4), "has a shape that is not"),
        (image({"a": tensor(0, 0, [0])}, 0), "has a shape that is not"),
        (image({"a": tensor(0, 4, [1.0])}, 4), "has a shape that is not"),
        (image({"a": tensor(0, 4, [True])}, 4), "has a shape that is not"),
        (image({"a": tensor(0, 4, [1] * 9)}, 4), "has a shape that is not"),
        (image({"a": tensor(0, 4, [2**62, 2**62])}, 4), "has a shape that is not"),
        (image({"a": tensor(0, 4, [2**40, 2**40])}, 4), "not what its shape and dtype imply"),
        (image({"a": tensor(4, 0, [1])}, 4), "data_offsets that are not a range"),
        (image({"a": tensor(-4, 0, [1])}, 4), "data_offsets that are not a range"),
        (image({"a": tensor(0, 8, [1])}, 8), "spans 8 bytes"),
        (image({"a": tensor(0, 8), "b": tensor(4, 12)}, 12), "tensor b overlaps"),
        (image({"a": tensor(0, 8), "b": tensor(0, 8)}, 8), "overlaps"),
        (image({"a": tensor(0, 8), "b": tensor(12, 16)}, 16), "tensor b leaves a hole"),
        (image({"a": tensor(4, 8)}, 8), "tensor a leaves a hole"),
        (image(GOOD, 23), "tensor b ends at"),
        (image(GOOD, 25), "but its tensors end at"),
        (image({"a": tensor(2**60, 2**60 + 4)}, 4), "leaves a hole"),
    ],
)  # fmt: skip
def test_a_hostile_header_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(BundleRejected) as rejected:
        parse(data)
    assert rejected.value.file == FILE
    assert fault in rejected.value.fault


def test_every_truncation_is_refused() -> None:
    data = image(GOOD, 24)
    for length in range(len(data)):
        with pytest.raises(BundleRejected):
            parse(data[:length])


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_header_causes_anything_but_a_refusal(text: bytes) -> None:
    with pytest.raises(BundleRejected):
        parse(image(b'{"a":' + text, 4))


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.sampled_from(["F32", "BOOL", ""]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
_ENTRY = st.fixed_dictionaries({"dtype": _JSON, "shape": _JSON, "data_offsets": _JSON})


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=6), _ENTRY | _JSON, max_size=4), st.integers(0, 64))
def test_no_json_causes_anything_but_a_refusal(header: dict[str, Any], size: int) -> None:
    try:
        parse(image(header, size))
    except BundleRejected:
        return
    assert not header.keys() - {"__metadata__"} or size > 0


@settings(deadline=None)
@given(st.data())
def test_no_damage_causes_anything_but_a_refusal(data: st.DataObject) -> None:
    damaged = bytearray(image(GOOD, 24))
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 25))] = data.draw(st.integers(0, 255))
    with suppress(BundleRejected):
        parse(bytes(damaged))
