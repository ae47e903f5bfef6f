"""Every message has exactly one of the fixed sizes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.api.inference.v1 import inference_pb2
from tie.cloud_app.padding import ENVELOPE_BYTES, LARGEST, MAX_MESSAGE_BYTES, MAX_TEXT_BYTES, pad, split_text
from tie.contracts.limits import RESPONSE_BUCKETS


def test_a_message_beyond_the_largest_bucket_has_none() -> None:
    for size in (LARGEST - 1, LARGEST + 1, 10 * LARGEST):
        with pytest.raises(ValueError, match=f"a message of {size} bytes"):
            pad(bytes(size))


def test_every_size_is_brought_to_the_smallest_bucket_that_it_can_fill() -> None:
    for size in range(MAX_MESSAGE_BYTES + 1):
        expected = next(bucket for bucket in RESPONSE_BUCKETS if bucket - size not in (1,) and bucket >= size)
        assert len(pad(bytes(size))) == expected


@pytest.mark.parametrize("gap", [0, 2, 3, 127, 128, 129, 130, 131, 132, 133, 200, 255, 256, 257, 300])
def test_what_is_appended_is_padding_and_nothing_else(gap: int) -> None:
    body = _text_of_size(1024 - gap)
    padded = pad(body)
    assert len(padded) == 1024
    parsed = inference_pb2.InferenceResponse.FromString(padded)
    parsed.ClearField("padding")
    parsed.ClearField("padding_more")
    assert parsed.SerializeToString() == body


def test_padding_is_zeros() -> None:
    for gap in range(2, 700):
        parsed = inference_pb2.InferenceResponse.FromString(pad(_text_of_size(1024 - gap)))
        assert set(parsed.padding + parsed.padding_more) <= {0}


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=300), limit=st.integers(4, 40))
def test_a_text_is_split_between_characters(text: str, limit: int) -> None:
    parts = list(split_text(text, limit))
    assert "".join(parts) == text
    assert all(1 <= len(part.encode()) <= limit for part in parts)
    assert len(parts) <= 1 + len(text.encode()) // (limit - 3)


@pytest.mark.parametrize("character", ["a", "\u010f", "\u7d22", "\U0001f600"])
@pytest.mark.parametrize("extra", [0, 1, 2, 3, 4])
def test_a_delta_of_any_size_fits_in_parts(character: str, extra: int) -> None:
    text = "x" * extra + character * 20_000
    parts = list(split_text(text))
    assert "".join(parts) == text
    for part in parts:
        delta = inference_pb2.Delta(index=7, text=part)
        body = inference_pb2.InferenceResponse(delta=delta).SerializeToString()
        assert len(body) <= MAX_TEXT_BYTES + ENVELOPE_BYTES
        assert len(pad(body)) in RESPONSE_BUCKETS


def _text_of_size(size: int) -> bytes:
    """A serialized delta of exactly `size` bytes."""
    for length in range(size, -1, -1):
        body = inference_pb2.InferenceResponse(delta=inference_pb2.Delta(text="x" * length)).SerializeToString()
        if len(body) == size:
            return body
        if len(body) < size:  # the border of a length's own length: one more byte of something else
            body = inference_pb2.InferenceResponse(
                delta=inference_pb2.Delta(index=1, text="x" * (length - 1))
            ).SerializeToString()
            assert len(body) == size
            return body
    raise AssertionError
