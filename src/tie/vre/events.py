"""The events of an answer, typed; each knows its field name in the contract for `tie-vre --json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from tie.api.inference.v1 import inference_pb2 as pb
from tie.vre.errors import BadAnswer


@dataclass(frozen=True, slots=True, repr=False)
class _Event:
    name: ClassVar[str]

    def to_fields(self) -> dict[str, Any]:
        """By the contract's field names; only what is set where the contract has a choice."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"  # an answer's text belongs in no traceback


@dataclass(frozen=True, slots=True, repr=False)
class TokenLogprob(_Event):
    """A sampled token with its log-probability; alternatives are (token id, log-probability)."""

    token_id: int
    logprob: float
    alternatives: tuple[tuple[int, float], ...]

    def to_fields(self) -> dict[str, Any]:
        others = [{"token_id": token_id, "logprob": logprob} for token_id, logprob in self.alternatives]
        return {"token_id": self.token_id, "logprob": self.logprob, "alternatives": others}


@dataclass(frozen=True, slots=True, repr=False)
class ToolCallDelta(_Event):
    """A piece of a tool call."""

    call_index: int
    id: str
    tool: str
    arguments_json: str

    def to_fields(self) -> dict[str, Any]:
        return {
            "call_index": self.call_index,
            "id": self.id,
            "name": self.tool,
            "arguments_json": self.arguments_json,
        }


@dataclass(frozen=True, slots=True, repr=False)
class Progress(_Event):
    """The node is alive and has nothing to show yet."""

    name = "progress"

    def to_fields(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, slots=True, repr=False)
class Delta(_Event):
    """More of one choice: text, reasoning or a piece of a tool call."""

    name = "delta"
    index: int
    text: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None
    logprobs: tuple[TokenLogprob, ...] = ()

    def to_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"index": self.index}
        if self.tool_call is not None:
            fields["tool_call_delta"] = self.tool_call.to_fields()
        elif self.reasoning:
            fields["reasoning_delta"] = self.reasoning
        else:
            fields["text"] = self.text
        if self.logprobs:
            fields["logprobs"] = [logprob.to_fields() for logprob in self.logprobs]
        return fields


@dataclass(frozen=True, slots=True, repr=False)
class Finish(_Event):
    """The end of one choice. `reason`: stop, length, grammar, tool_calls, cancelled, error."""

    name = "finish"
    index: int
    reason: str

    def to_fields(self) -> dict[str, Any]:
        return {"index": self.index, "reason": self.reason}


@dataclass(frozen=True, slots=True, repr=False)
class Usage(_Event):
    """Tokens of the whole request."""

    name = "usage"
    request_id: str
    prompt: int
    cached_prefix: int
    restored: int
    completion: int

    def to_fields(self) -> dict[str, Any]:
        return {
            "request_id": self.request_id,
            "prompt": self.prompt,
            "cached_prefix": self.cached_prefix,
            "restored": self.restored,
            "completion": self.completion,
        }


@dataclass(frozen=True, slots=True, repr=False)
class NodeError(_Event):
    """The node's answer is an error. `kind` as in the contract, in lower case; `where` is the path of a field."""

    name = "error"
    kind: str
    message: str
    where: str

    def to_fields(self) -> dict[str, Any]:
        return {"kind": self.kind, "message": self.message, "where": self.where}


@dataclass(frozen=True, slots=True, repr=False)
class Truncated(_Event):
    """The answer stopped without its sealed end: what came before may be a part. Always the last event."""

    name = "truncated"
    reason: str

    def to_fields(self) -> dict[str, Any]:
        return {"reason": self.reason}


Event = Progress | Delta | Finish | Usage | NodeError | Truncated


def parse(message: bytes) -> Event:
    """One opened message. Raises BadAnswer when it is none of the contract's."""
    response = pb.InferenceResponse()
    try:
        response.ParseFromString(message)
    except ValueError as error:  # protobuf's DecodeError is one
        raise BadAnswer(f"a message of {len(message)} bytes is not of the contract") from error
    match response.WhichOneof("event"):
        case "progress":
            return Progress()
        case "delta":
            return _delta(response.delta)
        case "finish":
            return Finish(response.finish.index, _lower(pb.FinishReason.Name, response.finish.reason, "FINISH_REASON_"))
        case "usage":
            used = response.usage
            return Usage(used.request_id, used.prompt, used.cached_prefix, used.restored, used.completion)
        case "error":
            kind = _lower(pb.ErrorKind.Name, response.error.kind, "ERROR_KIND_")
            return NodeError(kind, response.error.message, response.error.where)
    raise BadAnswer(f"a message of {len(message)} bytes holds no event")


def _delta(delta: pb.Delta) -> Delta:
    call = delta.tool_call_delta if delta.HasField("tool_call_delta") else None
    return Delta(
        index=delta.index,
        text=delta.text,
        reasoning=delta.reasoning_delta,
        tool_call=ToolCallDelta(call.call_index, call.id, call.name, call.arguments_json) if call else None,
        logprobs=tuple(_logprob(entry) for entry in delta.logprobs),
    )


def _logprob(entry: pb.TokenLogprobs) -> TokenLogprob:
    alternatives = tuple((other.token_id, other.logprob) for other in entry.alternatives)
    return TokenLogprob(entry.token_id, entry.logprob, alternatives)


def _lower(name_of: Any, value: int, prefix: str) -> str:
    """An enum's value as the contract spells it, without prefix; a value that this client does not know is a number."""
    try:
        return str(name_of(value)).removeprefix(prefix).lower()
    except ValueError:
        return str(value)
