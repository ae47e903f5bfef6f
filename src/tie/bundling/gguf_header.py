"""The header of a GGUF file (versions 2 and 3), believed only as far as it has been checked.

    "GGUF" | version | tensor count | key count | keys and values | tensor infos | padding | data

Every length is compared with what the file still holds before anything is read or made of it. Nested arrays, which no
model of ours has, are refused, so nothing here recurses.
"""

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any, Final

from tie.bundling.errors import SourceRejected
from tie.bundling.source import UNITS, SourceForm

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
MAX_HEADER_BYTES: Final = 256 * 1024 * 1024
MAX_KEYS: Final = 4_096
MAX_TENSORS: Final = 65_536
MAX_NAME_BYTES: Final = 256
MAX_STRING_BYTES: Final = 16 * 1024 * 1024
MAX_ARRAY: Final = 2**22
MAX_DIMENSIONS: Final = 4
MAX_DIMENSION: Final = 2**40
MAX_ALIGNMENT: Final = 65_536
DEFAULT_ALIGNMENT: Final = 32
_BUFFER_BYTES: Final = 1 << 20
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]+")

_SCALARS: Final[Mapping[int, str]] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING: Final = 8
_ARRAY: Final = 9

_FORMS: Final[Mapping[int, SourceForm]] = {0: "f32", 1: "f16", 2: "q4_0", 3: "q4_1", 8: "q8_0", 30: "bf16"}
_REFUSED_TYPES: Final[Mapping[int, str]] = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K",
    16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufTensor:
    name: str
    shape: tuple[int, ...]  # rows first, as everywhere here; the file has it the other way round
    form: SourceForm
    offset: int  # from the start of the file
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    values: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_header(file: str, fd: int) -> GgufHeader:
    cursor = _Cursor(file, fd)
    if cursor.take(4) != MAGIC:
        raise SourceRejected(file, "does not begin with GGUF")
    version = cursor.scalar("I")
    if version not in VERSIONS:
        big = " (a big-endian file)" if int.from_bytes(struct.pack("<I", version), "big") in VERSIONS else ""
        raise SourceRejected(file, f"is of GGUF version {version}{big}, not 2 or 3")
    tensor_count = cursor.count("tensors", MAX_TENSORS)
    key_count = cursor.count("keys", MAX_KEYS)
    values: dict[str, Any] = {}
    for _ in range(key_count):
        key, value = cursor.name("key"), cursor.value()
        if key in values:
            raise SourceRejected(file, f"key {key} is given twice")
        values[key] = value
    alignment = _alignment(file, values)
    tensors: dict[str, GgufTensor] = {}
    for _ in range(tensor_count):
        tensor = _tensor(cursor, alignment)
        if tensor.name in tensors:
            raise SourceRejected(file, f"tensor {tensor.name} is given twice")
        tensors[tensor.name] = tensor
    data = -(-cursor.position // alignment) * alignment
    placed = {t.name: GgufTensor(t.name, t.shape, t.form, data + t.offset, t.size_bytes) for t in tensors.values()}
    _check_places(file, placed, data, cursor.size, alignment)
    return GgufHeader(values, placed)


def _alignment(file: str, values: Mapping[str, Any]) -> int:
    alignment = values.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise SourceRejected(file, f"general.alignment is not a power of two of at most {MAX_ALIGNMENT}")
    return alignment


def _tensor(cursor: "_Cursor", alignment: int) -> GgufTensor:
    name = cursor.name("tensor")
    rank = cursor.scalar("I")
    if not 1 <= rank <= MAX_DIMENSIONS:
        raise cursor.refusal(f"tensor {name} has {rank} dimensions, not 1..{MAX_DIMENSIONS}")
    shape = tuple(reversed([cursor.scalar("Q") for _ in range(rank)]))
    kind, offset = cursor.scalar("I"), cursor.scalar("Q")
    if not all(1 <= dimension <= MAX_DIMENSION for dimension in shape):
        raise cursor.refusal(f"tensor {name} has a dimension outside 1..{MAX_DIMENSION}")
    form = _FORMS.get(kind)
    if form is None:
        known = _REFUSED_TYPES.get(kind, f"number {kind}")
        raise cursor.refusal(f"tensor {name} is of type {known}; only F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are imported")
    elements, unit_bytes = UNITS[form]
    if shape[-1] % elements:
        raise cursor.refusal(f"tensor {name} has rows of {shape[-1]}, not a multiple of {elements}")
    if offset % alignment:
        raise cursor.refusal(f"tensor {name} is not aligned to {alignment} bytes")
    return GgufTensor(name, shape, form, offset, prod(shape) // elements * unit_bytes)


def _check_places(file: str, tensors: Mapping[str, GgufTensor], data: int, size: int, alignment: int) -> None:
    """Inside the file, side by side, and nothing after the last but padding."""
    ordered = sorted(tensors.values(), key=lambda tensor: tensor.offset)
    for tensor in ordered:
        if tensor.offset + tensor.size_bytes > size:
            end = tensor.offset + tensor.size_bytes
            raise SourceRejected(file, f"tensor {tensor.name} ends at {end}, beyond the file's {size} bytes")
    for before, after in pairwise(ordered):
        if before.offset + before.size_bytes > after.offset:
            raise SourceRejected(file, f"tensor {after.name} overlaps {before.name}")
    end = ordered[-1].offset + ordered[-1].size_bytes if ordered else data
    if size - end >= alignment:
        raise SourceRejected(file, f"has {size - end} bytes after its last tensor")


class _Cursor:
    """Reads forward through the file, a buffer at a time; refuses to read beyond its end."""

    def __init__(self, file: str, fd: int) -> None:
        self._file = file
        self._fd = fd
        self._buffer = b""
        self._start = 0  # of the buffer, in the file
        self.position = 0
        self.size = os.fstat(fd).st_size

    def refusal(self, fault: str) -> SourceRejected:
        return SourceRejected(self._file, fault)

    def take(self, count: int) -> bytes:
        if count > self.size - self.position:
            raise self.refusal(f"ends in its header, at {self.size} bytes")
        if count > MAX_HEADER_BYTES - self.position:
            raise self.refusal(f"has a header of more than {MAX_HEADER_BYTES} bytes")
        at = self.position - self._start
        if at + count > len(self._buffer):
            self._buffer = os.pread(self._fd, max(count, _BUFFER_BYTES), self.position)
            self._start, at = self.position, 0
            if len(self._buffer) < count:
                raise self.refusal("became shorter while it was read")
        self.position += count
        return self._buffer[at : at + count]

    def scalar(self, code: str) -> Any:
        layout = struct.Struct("<" + code)
        return layout.unpack(self.take(layout.size))[0]

    def count(self, of: str, most: int) -> int:
        count: int = self.scalar("Q")
        if count > most:
            raise self.refusal(f"claims {count} {of}, more than {most}")
        return count

    def name(self, of: str) -> str:
        data = self._string(MAX_NAME_BYTES)
        if _NAME.fullmatch(data) is None:
            raise self.refusal(f"has a {of} name of {len(data)} characters that is not a plain name")
        return data

    def value(self) -> Any:
        kind = self.scalar("I")
        return self._array() if kind == _ARRAY else self._single(kind)

    def _array(self) -> list[Any]:
        kind, length = self.scalar("I"), self.scalar("Q")
        if length > MAX_ARRAY:
            raise self.refusal(f"claims an array of {length}, more than {MAX_ARRAY}")
        if kind == _STRING:
            return [self._string(MAX_STRING_BYTES) for _ in range(length)]
        code = self._code(kind)
        layout = struct.Struct(f"<{length}{code}")
        return list(layout.unpack(self.take(layout.size)))

    def _single(self, kind: int) -> Any:
        return self._string(MAX_STRING_BYTES) if kind == _STRING else self.scalar(self._code(kind))

    def _code(self, kind: int) -> str:
        if kind == _ARRAY:
            raise self.refusal("has an array of arrays")
        code = _SCALARS.get(kind)
        if code is None:
            raise self.refusal(f"has a value of type {kind}, which is not known")
        return code

    def _string(self, most: int) -> str:
        length: int = self.scalar("Q")
        if length > most:
            raise self.refusal(f"claims a string of {length} bytes, more than {most}")
        try:
            return self.take(length).decode("utf-8")
        except UnicodeDecodeError:
            raise self.refusal(f"has a string of {length} bytes that is not UTF-8") from None
