"""Builds the sealed payload: an InferenceRequest of the contract, padded so that its size says little.

Ranges are the node's to check; here only what cannot be put into the message at all is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tie.api.inference.v1 import inference_pb2 as pb
from tie.contracts.errors import InvalidRequest
from tie.contracts.limits import MAX_REQUEST_BYTES, REQUEST_BUCKETS
from tie.vre.tools import Tool, ToolCall, put_calls, put_tools

_ROLES: Final = {
    "system": pb.ROLE_SYSTEM,
    "user": pb.ROLE_USER,
    "assistant": pb.ROLE_ASSISTANT,
    "tool": pb.ROLE_TOOL,
}
_PADDING_TAG_BYTES: Final = 2


@dataclass(frozen=True, slots=True, repr=False)
class ChatMessage:
    """One turn of a dialogue. `role`: system, user, assistant or tool."""

    role: str
    text: str
    tool_calls: Sequence[ToolCall] = ()
    """Of an assistant: what it called."""
    tool_call_id: str = ""
    """Of a tool: the call whose result `text` is."""

    def __repr__(self) -> str:
        return f"<ChatMessage of {len(self.text)} characters>"


@dataclass(frozen=True, slots=True, repr=False)
class Sampling:
    """How to choose tokens. Greedy unless told otherwise; None leaves the choice to the node."""

    temperature: float | None = 0.0
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool = False
    n: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    logprobs: int | None = None


GREEDY: Final = Sampling()


def chat_request(
    messages: Sequence[ChatMessage],
    sampling: Sampling = GREEDY,
    *,
    model: str = "",
    adapter: str = "",
    background: bool = False,
    request_id: str = "",
    tools: Sequence[Tool] = (),
    tool_choice: str = "",
) -> pb.InferenceRequest:
    """A dialogue, rendered by the template of the node's bundle; `adapter` names one of the bundle's.

    `background`: work that can wait, for which interactive requests come first. `tool_choice`: auto (where there are
    tools), none, required, or the name of the tool to call. Raises InvalidRequest.
    """
    request = _request(sampling, model, adapter, request_id)
    request.background = background
    put_tools(request, tools, _text("tool_choice", tool_choice))
    for place, message in enumerate(messages):
        if message.role not in _ROLES:
            raise InvalidRequest(f"chat.messages[{place}].role", f"is none of {', '.join(_ROLES)}")
        where = f"chat.messages[{place}]"
        added = request.chat.messages.add(role=_ROLES[message.role])
        added.parts.add(text=_text(where, message.text))
        added.tool_call_id = _text(f"{where}.tool_call_id", message.tool_call_id)
        put_calls(added, message.tool_calls, where)
    return request


def raw_request(
    text: str,
    sampling: Sampling = GREEDY,
    *,
    model: str = "",
    adapter: str = "",
    background: bool = False,
    request_id: str = "",
) -> pb.InferenceRequest:
    """Text that goes to the model as it is, with no template. Raises InvalidRequest."""
    request = _request(sampling, model, adapter, request_id)
    request.background = background
    request.raw_text = _text("raw_text", text)
    return request


def padded(request: pb.InferenceRequest) -> bytes:
    """Serialized, with zero bytes up to exactly a bucket's size. Raises InvalidRequest past the limit."""
    plain = request.SerializeToString()
    if len(plain) > MAX_REQUEST_BYTES:
        raise InvalidRequest("request", f"has {len(plain)} bytes, the limit is {MAX_REQUEST_BYTES}")
    for bucket in REQUEST_BUCKETS:
        gap = bucket - len(plain)
        if gap == 0:
            return plain
        if gap > 0 and (zeros := _zeros_that_fill(gap)) is not None:
            request = pb.InferenceRequest.FromString(plain)
            request.padding = bytes(zeros)
            return request.SerializeToString()
    return plain


def _zeros_that_fill(gap: int) -> int | None:
    """How many bytes a padding field holds that takes `gap` in all; None where a length's own size leaves a hole."""
    for length_bytes in range(1, 5):
        zeros = gap - _PADDING_TAG_BYTES - length_bytes
        if zeros > 0 and (zeros.bit_length() + 6) // 7 == length_bytes:
            return zeros
    return None


def _request(sampling: Sampling, model: str, adapter: str, request_id: str) -> pb.InferenceRequest:
    request = pb.InferenceRequest(
        model=_text("model", model), adapter=_text("adapter", adapter), request_id=_text("request_id", request_id)
    )
    for name in _SCALARS:
        if (value := getattr(sampling, name)) is not None:
            _put(request.sampling, name, value, f"sampling.{name}")
    request.sampling.ignore_eos = sampling.ignore_eos
    for token_id, bias in sampling.logit_bias.items():
        try:
            request.sampling.logit_bias[token_id] = bias
        except (ValueError, TypeError, OverflowError) as error:
            raise InvalidRequest("sampling.logit_bias", "a token id or bias does not fit the field") from error
    if sampling.logprobs is not None:
        _put(request, "logprobs", sampling.logprobs, "logprobs")
    request.stop_strings.extend(_text(f"stop_strings[{place}]", stop) for place, stop in enumerate(sampling.stop))
    try:
        request.stop_token_ids.extend(sampling.stop_token_ids)
    except (ValueError, TypeError) as error:
        raise InvalidRequest("stop_token_ids", "a token id does not fit the field") from error
    return request


_SCALARS: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "max_tokens",
    "min_tokens",
    "n",
)


def _put(message: pb.InferenceRequest | pb.Sampling, name: str, value: object, where: str) -> None:
    try:
        setattr(message, name, value)
    except (ValueError, TypeError) as error:
        raise InvalidRequest(where, "does not fit the field") from error


def _text(where: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(where, f"is not UTF-8 at character {error.start}") from None
    return text
