"""The header of a safetensors file, believed only as far as it has been checked.

    u64 header length | JSON header, padded with spaces | data: tensors side by side, no hole, no overlap

Reads the header only: the data is somebody else's to map, after the file's digest was verified.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

from tie.catalog import strict_json
from tie.catalog.errors import BundleRejected

ELEMENT_BYTES: Final[Mapping[str, int]] = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8,
}  # fmt: skip
LENGTH_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 32 * 1024 * 1024
MAX_TENSORS: Final = 65_536
MAX_RANK: Final = 8
MAX_DIMENSION: Final = 2**40
_NAME: Final = re.compile(r"[A-Za-z0-9_.\-/:]{1,256}")


@dataclass(frozen=True, slots=True)
class Tensor:
    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int  # from the start of the file
    size_bytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    data_offset: int


def read_header(file: str, fd: int) -> SafetensorsHeader:
    """`file` is the name for messages; the position of `fd` is neither used nor moved."""
    size = os.fstat(fd).st_size
    length = _header_length(file, os.pread(fd, LENGTH_BYTES, 0), size)
    header = os.pread(fd, length, LENGTH_BYTES)
    if len(header) != length:
        raise BundleRejected(file, "became shorter while it was read")
    return parse_header(file, header, size)


def parse_header(file: str, header: bytes, file_size: int) -> SafetensorsHeader:
    """`header` is the JSON alone, without its length."""
    if not header.startswith(b"{"):
        raise BundleRejected(file, "header does not begin with {")
    entries = strict_json.loads(file, header, "header ")
    if not isinstance(entries, dict):
        raise BundleRejected(file, "header is not an object")
    metadata = _metadata(file, entries.pop("__metadata__", {}))
    if len(entries) > MAX_TENSORS:
        raise BundleRejected(file, f"header lists {len(entries)} tensors, more than {MAX_TENSORS}")
    data_offset = LENGTH_BYTES + len(header)
    tensors = {name: _tensor(file, name, entry, data_offset) for name, entry in entries.items()}
    _check_contiguous(file, tensors, data_offset, file_size)
    return SafetensorsHeader(tensors, metadata, data_offset)


def _header_length(file: str, prefix: bytes, size: int) -> int:
    if len(prefix) != LENGTH_BYTES:
        raise BundleRejected(file, f"is {size} bytes, too short for a safetensors file")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise BundleRejected(file, f"header claims {length} bytes, more than {MAX_HEADER_BYTES}")
    if length > size - LENGTH_BYTES:
        raise BundleRejected(file, f"header claims {length} bytes, but only {size - LENGTH_BYTES} follow")
    return length


def _metadata(file: str, values: Any) -> Mapping[str, str]:
    if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
        raise BundleRejected(file, "header's __metadata__ is not a table of strings")
    return values


def _tensor(file: str, name: str, entry: Any, data_offset: int) -> Tensor:
    if _NAME.fullmatch(name) is None:
        raise BundleRejected(file, f"header holds a tensor name of {len(name)} characters that is not a plain name")
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise BundleRejected(file, f"tensor {name} does not have exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in ELEMENT_BYTES:
        raise BundleRejected(file, f"tensor {name} has a dtype that is not known")
    if not _is_integers(shape) or len(shape) > MAX_RANK or not all(1 <= dim <= MAX_DIMENSION for dim in shape):
        raise BundleRejected(file, f"tensor {name} has a shape that is not 0..{MAX_RANK} sizes in 1..{MAX_DIMENSION}")
    if not _is_integers(offsets) or len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1]:
        raise BundleRejected(file, f"tensor {name} has data_offsets that are not a range")
    begin, end = offsets
    if end - begin != prod(shape) * ELEMENT_BYTES[dtype]:
        raise BundleRejected(file, f"tensor {name} spans {end - begin} bytes, not what its shape and dtype imply")
    return Tensor(name, dtype, tuple(shape), data_offset + begin, end - begin)


def _is_integers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int for value in values)


def _check_contiguous(file: str, tensors: Mapping[str, Tensor], data_offset: int, file_size: int) -> None:
    end = data_offset
    for tensor in sorted(tensors.values(), key=lambda tensor: tensor.offset):
        if tensor.offset != end:
            fault = "overlaps the one before it" if tensor.offset < end else "leaves a hole before it"
            raise BundleRejected(file, f"tensor {tensor.name} {fault}")
        end += tensor.size_bytes
        if end > file_size:
            raise BundleRejected(file, f"tensor {tensor.name} ends at {end}, beyond the file's {file_size} bytes")
    if end != file_size:
        raise BundleRejected(file, f"is {file_size} bytes, but its tensors end at {end}")
