"""Brings every message to the device to one of a few sizes, so that its size tells next to nothing.

Padding is appended to the serialized message: a protobuf field costs two bytes around up to 127 others and three around
more, so one field cannot fill a gap of 130 bytes, and two can. Nothing fills a gap of one: it takes the next bucket.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from tie.contracts.limits import RESPONSE_BUCKETS

LARGEST: Final = RESPONSE_BUCKETS[-1]
MAX_MESSAGE_BYTES: Final = LARGEST - 2
"""What pads to the largest bucket, whatever its exact size."""
ENVELOPE_BYTES: Final = 64
"""More than a delta takes beside its text."""
MAX_TEXT_BYTES: Final = MAX_MESSAGE_BYTES - ENVELOPE_BYTES

_FIRST_TAG: Final = bytes((14 << 3 | 2,))
_SECOND_TAG: Final = bytes((15 << 3 | 2,))
_UNFILLABLE: Final = 130


def pad(message: bytes) -> bytes:
    """`message`, a serialized InferenceResponse without padding, as long as the smallest bucket that it can fill.

    Raises ValueError when it exceeds the largest bucket: whoever builds messages splits them (`split_text`).
    """
    for bucket in RESPONSE_BUCKETS:
        gap = bucket - len(message)
        if gap == 0 or gap >= 2:
            return message + _filling(gap)
    raise ValueError(f"a message of {len(message)} bytes has no bucket")


def split_text(text: str, limit: int = MAX_TEXT_BYTES) -> Iterator[str]:
    """Parts of at most `limit` bytes of UTF-8 (at least 4), no character split, none empty."""
    data = text.encode("utf-8")
    start = 0
    while len(data) - start > limit:
        end = start + limit
        while data[end] & 0xC0 == 0x80:  # a continuation byte: its character goes to the next part
            end -= 1
        yield data[start:end].decode("utf-8")
        start = end
    if start < len(data):
        yield data[start:].decode("utf-8")


def _filling(gap: int) -> bytes:
    if gap == 0:
        return b""
    if gap == _UNFILLABLE:
        return _field(_FIRST_TAG, gap // 2) + _field(_SECOND_TAG, gap - gap // 2)
    return _field(_FIRST_TAG, gap)


def _field(tag: bytes, size: int) -> bytes:
    """A bytes field of zeros that takes exactly `size` bytes: 2 to 129, or 131 to 16386."""
    if size <= 129:
        return tag + bytes((size - 2,)) + bytes(size - 2)
    length = size - 3
    return tag + bytes((length & 0x7F | 0x80, length >> 7)) + bytes(length)
