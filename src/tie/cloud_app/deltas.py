"""What is shown of a choice after a step as messages, each of which fits the largest bucket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tie.api.inference.v1.inference_pb2 import Delta, InferenceResponse, ToolCallDelta
from tie.cloud_app.choices import Shown
from tie.cloud_app.padding import split_text
from tie.cloud_app.tool_calls import CallArguments, CallBegun, Piece

LOGPROBS_PER_MESSAGE: Final = 32
"""With 20 alternatives each they fill three quarters of the largest bucket."""
_TEXT_BESIDE_LOGPROBS: Final = 2048


def deltas(index: int, shown: Shown) -> Iterator[InferenceResponse]:
    """A piece and its log-probabilities together where that fits, and each by itself otherwise."""
    batches = [
        shown.logprobs[n : n + LOGPROBS_PER_MESSAGE] for n in range(0, len(shown.logprobs), LOGPROBS_PER_MESSAGE)
    ]
    contents = [content for piece in _joined(shown.pieces) for content in _contents(index, piece)]
    if len(batches) == 1 and not contents:
        contents = [Delta(index=index, text="")]
    if len(batches) == 1 and len(contents) == 1 and contents[0].ByteSize() <= _TEXT_BESIDE_LOGPROBS:
        contents[0].logprobs.extend(batches.pop())
    for content in contents:
        yield InferenceResponse(delta=content)
    for batch in batches:
        yield InferenceResponse(delta=Delta(index=index, logprobs=batch))


def _contents(index: int, piece: Piece) -> Iterator[Delta]:
    match piece:
        case CallBegun(call_index, call_id, name):
            begun = ToolCallDelta(call_index=call_index, id=call_id, name=name)
            yield Delta(index=index, tool_call_delta=begun)
        case CallArguments(call_index, text):
            for part in split_text(text):
                yield Delta(index=index, tool_call_delta=ToolCallDelta(call_index=call_index, arguments_json=part))
        case str():
            for part in split_text(piece):
                yield Delta(index=index, text=part)


def _joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of a kind as one: a step may bring many tokens."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if isinstance(piece, str) and isinstance(last, str):
            joined[-1] = last + piece
        elif isinstance(piece, CallArguments) and isinstance(last, CallArguments) and piece.index == last.index:
            joined[-1] = CallArguments(piece.index, last.text + piece.text)
        else:
            joined.append(piece)
    return joined
