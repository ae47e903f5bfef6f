"""How a request can fail, and what device and helper are told of it. No text holds what a request brought."""

from __future__ import annotations

from typing import Final

from tie.api.afm.v1 import afm_pb2
from tie.api.inference.v1 import inference_pb2
from tie.api.job.v1 import job_pb2
from tie.contracts.errors import (
    DeadlinePassed,
    InvalidRequest,
    NotReady,
    OverCapacity,
    PeerGone,
    TieError,
    Unsupported,
)


class ModelNotFound(InvalidRequest):
    """The request names a model that this node does not serve, or an adapter that the model does not have."""


class PromptTooLong(InvalidRequest):
    """The prompt does not fit the context; the message has both numbers."""


class GenerationFailed(TieError):
    """This request's numbers went wrong, nobody else's."""


class TornDown(TieError):
    """The helper wants no more of this job."""


# The first class that an error belongs to decides: the special ones stand before those that they extend.
_KINDS: Final[tuple[tuple[type[TieError], inference_pb2.ErrorKind.ValueType], ...]] = (
    (ModelNotFound, inference_pb2.ERROR_KIND_MODEL_NOT_FOUND),
    (PromptTooLong, inference_pb2.ERROR_KIND_PROMPT_TOO_LONG),
    (Unsupported, inference_pb2.ERROR_KIND_UNSUPPORTED),
    (InvalidRequest, inference_pb2.ERROR_KIND_INVALID_REQUEST),
    (GenerationFailed, inference_pb2.ERROR_KIND_GENERATION_FAILED),
    (DeadlinePassed, inference_pb2.ERROR_KIND_DEADLINE),
    (OverCapacity, inference_pb2.ERROR_KIND_BUSY),
    (NotReady, inference_pb2.ERROR_KIND_RECYCLED),
    (PeerGone, inference_pb2.ERROR_KIND_RUNTIME_LOST),
)
_CALLERS_FAULT: Final = frozenset(
    {
        inference_pb2.ERROR_KIND_INVALID_REQUEST,
        inference_pb2.ERROR_KIND_UNSUPPORTED,
        inference_pb2.ERROR_KIND_MODEL_NOT_FOUND,
        inference_pb2.ERROR_KIND_PROMPT_TOO_LONG,
    }
)
_MAX_TEXT: Final = 400


def told(error: BaseException) -> inference_pb2.Error:
    """The message for the device. Of an error that nobody foresaw it says only that there was one."""
    for kind, code in _KINDS:
        if isinstance(error, kind):
            where = error.where if isinstance(error, InvalidRequest) else ""
            text = error.problem if isinstance(error, InvalidRequest) else str(error)
            return inference_pb2.Error(kind=code, message=text[:_MAX_TEXT], where=where[:_MAX_TEXT])
    return inference_pb2.Error(kind=inference_pb2.ERROR_KIND_INTERNAL, message="the request failed inside the node")


def outcome(kind: inference_pb2.ErrorKind.ValueType) -> job_pb2.Outcome.ValueType:
    """The verdict for the helper."""
    return job_pb2.OUTCOME_INVALID_REQUEST if kind in _CALLERS_FAULT else job_pb2.OUTCOME_INTERNAL_ERROR


def from_runtime(failure: afm_pb2.Failure, grammar_of: str = "constraint") -> TieError:
    """What the runtime says went wrong. Its texts are ours: they name fields and limits.

    `grammar_of`: the field that the request's grammar was made of.
    """
    match failure.kind:
        case afm_pb2.FAILURE_KIND_INVALID:
            return InvalidRequest("", f"the runtime refuses: {failure.message}")
        case afm_pb2.FAILURE_KIND_TOO_LONG:
            return PromptTooLong("", f"the runtime refuses: {failure.message}")
        case afm_pb2.FAILURE_KIND_BUSY:
            return OverCapacity("the runtime is full: try again later")
        case afm_pb2.FAILURE_KIND_NOT_FINITE:
            return GenerationFailed("the model computed no finite number for the next token")
        case afm_pb2.FAILURE_KIND_GRAMMAR:
            return InvalidRequest(grammar_of, f"the runtime refuses: {failure.message}")
        case afm_pb2.FAILURE_KIND_DEADLINE:
            return DeadlinePassed("the runtime did not finish within the request's deadline")
        case afm_pb2.FAILURE_KIND_STALLED:
            return DeadlinePassed("the answer was not read for too long")
        case afm_pb2.FAILURE_KIND_DRAINING:
            return NotReady("the runtime is being recycled: try again")
        case _:
            name = afm_pb2.FailureKind.Name(failure.kind) if failure.kind in afm_pb2.FailureKind.values() else "unknown"
            return TieError(f"the runtime failed: {name}")
