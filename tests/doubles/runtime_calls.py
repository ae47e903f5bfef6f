"""What a request process sends to the runtime, with every field at its plainest unless a test says otherwise."""

from __future__ import annotations

from typing import Any

from doubles.scripted_engine import IDENTITY

from tie.api.afm.v1 import afm_pb2

PLAIN = {"temperature": 0.0, "top_p": 1.0, "repetition_penalty": 1.0, "seed": 1}


def params(ticket: bytes, **changes: Any) -> afm_pb2.GenerateParams:
    """Fields of Sampling are given as those of GenerateParams; None leaves a field unset."""
    sampling: dict[str, Any] = dict(PLAIN)
    fields: dict[str, Any] = {"bundle_identity": IDENTITY, "max_tokens": 16, "n": 1, "deadline_ms": 20_000}
    for name, value in changes.items():
        (sampling if name in afm_pb2.Sampling.DESCRIPTOR.fields_by_name else fields)[name] = value
    given = {name: value for name, value in fields.items() if value is not None}
    chosen = {name: value for name, value in sampling.items() if value is not None}
    return afm_pb2.GenerateParams(ticket=ticket, sampling=afm_pb2.Sampling(**chosen), **given)


def name(kind: int) -> str:
    """A failure's kind without its prefix."""
    return afm_pb2.FailureKind.Name(kind).removeprefix("FAILURE_KIND_")  # type: ignore[arg-type]
