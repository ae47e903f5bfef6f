import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from doubles.gguf_file import ARRAY, BOOL, F32, STRING, U8, U32, U64, GgufFile, Tensor
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.bundling.errors import SourceRejected
from tie.bundling.gguf_header import MAX_ARRAY, MAX_STRING_BYTES, GgufHeader, read_header

FILE = "model.gguf"


@contextmanager
def memory_file(data: bytes) -> Iterator[int]:
    fd = os.memfd_create("gguf")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


def parse(data: bytes) -> GgufHeader:
    with memory_file(data) as fd:
        return read_header(FILE, fd)


def good(**changes: Any) -> GgufFile:
    file = GgufFile(
        {
            "general.architecture": (STRING, "llama"),
            "llama.block_count": (U32, 2),
            "tokenizer.ggml.tokens": (ARRAY, STRING, ["a", "ä", ""]),
            "tokenizer.ggml.scores": (ARRAY, F32, [0.5, -1.0]),
            "flag": (BOOL, True),
        },
        [Tensor("a.weight", (32, 3), 8, bytes(34 * 3)), Tensor("b.weight", (5,), 0, bytes(20))],
    )
    for name, value in changes.items():
        setattr(file, name, value)
    return file


def array_of(kind: int, length: int, rest: bytes = b"") -> bytes:
    return struct.pack("<IIQ", ARRAY, kind, length) + rest


def one_tensor(*args: Any, **kwargs: Any) -> bytes:
    return good(tensors=[Tensor("t", *args, **kwargs)]).to_bytes()


@pytest.mark.parametrize("version", [2, 3])
def test_a_header_is_read(version: int) -> None:
    header = parse(good(version=version).to_bytes())
    assert header.values["general.architecture"] == "llama"
    assert header.values["tokenizer.ggml.tokens"] == ["a", "ä", ""]
    assert header.values["tokenizer.ggml.scores"] == [0.5, -1.0]
    assert header.values["flag"] is True
    first, second = header.tensors["a.weight"], header.tensors["b.weight"]
    assert (first.shape, first.form, first.size_bytes, first.offset % 32) == ((3, 32), "q8_0", 102, 0)
    assert (second.shape, second.form, second.offset) == ((5,), "f32", first.offset + 128)


def value(data: bytes) -> bytes:
    return good(extra_keys=[("extra", data)]).to_bytes()


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "ends in its header, at 0 bytes"),
        (good(magic=b"GGML").to_bytes(), "does not begin with GGUF"),
        (good(version=1).to_bytes(), "is of GGUF version 1, not 2 or 3"),
        (good(version=4).to_bytes(), "is of GGUF version 4, not 2 or 3"),
        (good(version=3 << 24).to_bytes(), "big-endian"),
        (good(tensor_count=2**60).to_bytes(), f"claims {2**60} tensors"),
        (good(key_count=2**60).to_bytes(), f"claims {2**60} keys"),
        (good(key_count=2**64 - 1).to_bytes(), f"claims {2**64 - 1} keys"),
        (good(key_count=4000).to_bytes(), ""),
        (good(tensor_count=1000).to_bytes(), ""),
        (good(extra_keys=[("flag", (U8, 1))]).to_bytes(), "key flag is given twice"),
        (good(extra_keys=[("", (U8, 1))]).to_bytes(), "key name of 0 characters"),
        (good(extra_keys=[("a b", (U8, 1))]).to_bytes(), "key name of 3 characters"),
        (good(extra_keys=[("a" * 300, (U8, 1))]).to_bytes(), "claims a string of 300 bytes, more than 256"),
        (value(struct.pack("<IQ", STRING, 2**63)), f"claims a string of {2**63} bytes, more than {MAX_STRING_BYTES}"),
        (value(struct.pack("<IQ", STRING, 2**20)), "ends in its header"),
        (value(struct.pack("<IQ", STRING, 2) + b"\xff\xfe"), "that is not UTF-8"),
        (value(struct.pack("<I", 13) + bytes(8)), "has a value of type 13"),
        (value(array_of(U8, 2**63)), f"claims an array of {2**63}, more than {MAX_ARRAY}"),
        (value(array_of(U64, 2**21)), "ends in its header"),
        (value(array_of(STRING, 2**22)), ""),
        (value(array_of(ARRAY, 1, array_of(U8, 0))), "has an array of arrays"),
        (value(array_of(99, 1)), "has a value of type 99"),
        (good(extra_keys=[("general.alignment", (U32, 24))]).to_bytes(), "general.alignment is not a power of two"),
        (good(extra_keys=[("general.alignment", (U32, 0))]).to_bytes(), "general.alignment is not a power of two"),
        (good(extra_keys=[("general.alignment", (U32, 2**31))]).to_bytes(), "general.alignment is not a power of two"),
        (
            good(extra_keys=[("general.alignment", (STRING, "32"))]).to_bytes(),
            "general.alignment is not a power of two",
        ),
        (good(extra_keys=[("general.alignment", (BOOL, True))]).to_bytes(), "general.alignment is not a power of two"),
        (good(tensors=[Tensor("t", (4,), 0, bytes(16))] * 2).to_bytes(), "tensor t is given twice"),
        (good(tensors=[Tensor("../t", (4,), 0, bytes(16))]).to_bytes(), "tensor name of 4 characters"),
        (one_tensor((), 0, b""), "tensor t has 0 dimensions"),
        (one_tensor((1,) * 5, 0, bytes(4)), "tensor t has 5 dimensions"),
        (one_tensor((0,), 0, b""), "tensor t has a dimension outside"),
        (one_tensor((2**63,), 0, b""), "tensor t has a dimension outside"),
        (one_tensor((2**40, 2**40, 2**40), 0, b""), "beyond the file's"),
        (one_tensor((2**32, 2**32), 0, bytes(16)), "beyond the file's"),
        (one_tensor((32,), 12, bytes(144)), "tensor t is of type Q4_K; only F32"),
        (one_tensor((32,), 2**32 - 1, bytes(144)), "tensor t is of type number 4294967295"),
        (one_tensor((33,), 8, bytes(68)), "tensor t has rows of 33, not a multiple of 32"),
        (one_tensor((4,), 0, bytes(16), offset=2**63), "beyond the file's"),
        (one_tensor((4,), 0, bytes(16), offset=4), "tensor t is not aligned to 32 bytes"),
        (one_tensor((64,), 0, bytes(128)), "tensor t ends at"),
        (one_tensor((4,), 0, bytes(100)), "after its last tensor"),
        (good().to_bytes() + bytes(32), "has 44 bytes after its last tensor"),
        (
            good(tensors=[Tensor("t", (16,), 0, bytes(64)), Tensor("u", (16,), 0, bytes(64), offset=32)]).to_bytes(),
            "tensor u overlaps t",
        ),
    ],
)
def test_a_hostile_header_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(SourceRejected) as rejected:
        parse(data)
    assert rejected.value.file == FILE
    assert fault in rejected.value.fault


def test_every_truncation_is_refused() -> None:
    data = good().to_bytes()
    end = len(data) - 12  # the last tensor's padding may be missing
    for length in range(end):
        with pytest.raises(SourceRejected):
            parse(data[:length])
    parse(data[:end])


@settings(deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_cause_anything_but_a_refusal(rest: bytes) -> None:
    with suppress(SourceRejected):
        parse(b"GGUF" + struct.pack("<IQQ", 3, 1, 2) + rest)


@settings(deadline=None)
@given(st.data())
def test_no_damage_causes_anything_but_a_refusal(data: st.DataObject) -> None:
    damaged = bytearray(good().to_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(damaged) - 1))
        patch = data.draw(st.binary(min_size=1, max_size=8))
        damaged[at : at + len(patch)] = patch
    try:
        header = parse(bytes(damaged))
    except SourceRejected:
        return
    assert all(tensor.offset + tensor.size_bytes <= len(damaged) for tensor in header.tensors.values())
