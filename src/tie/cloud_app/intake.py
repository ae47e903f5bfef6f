"""Takes a request apart and checks all of it, once; everything behind this module trusts what it gets.

A field of the contract that nothing implements yet is refused by name, a field that the contract does not have is
refused too: nothing that a device asks for is silently left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from tie.api.inference.v1 import inference_pb2
from tie.cloud_app import constraint, tools
from tie.cloud_app.conversation import check_chat
from tie.cloud_app.failures import ModelNotFound
from tie.cloud_app.sampling import Sampling, check_sampling, check_token_id
from tie.cloud_app.tools import Tools, check_tools
from tie.constraints.call_form import CallForm
from tie.contracts import limits
from tie.contracts.errors import InvalidRequest, Unsupported
from tie.prompting.chat import Message


@dataclass(frozen=True, slots=True)
class Offer:
    """What this node serves, as far as a request can name it."""

    model: str
    vocab_size: int
    has_chat: bool
    template_parameters: Callable[[str], frozenset[str] | None]
    adapters: frozenset[str] = frozenset()
    call_form: CallForm | None = None
    """How the model writes tool calls; None where it is not known to."""


@dataclass(frozen=True, slots=True, repr=False)
class ChatPrompt:
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True, repr=False)
class ValuesPrompt:
    template_id: str
    values: dict[str, str]


@dataclass(frozen=True, slots=True, repr=False)
class RawPrompt:
    text: str


@dataclass(frozen=True, slots=True, repr=False)
class Request:
    """A request without a fault."""

    request_id: str
    prompt: ChatPrompt | ValuesPrompt | RawPrompt
    sampling: Sampling
    stop_strings: tuple[bytes, ...]
    stop_token_ids: tuple[int, ...]
    logprobs: int | None
    adapter: str = ""
    """Empty where none is asked for."""
    is_background: bool = False
    grammar: str = ""
    """What the answer must keep to, in the runtime's form; empty for nothing."""
    tools: Tools = tools.NONE


def parse_request(data: bytes, offer: Offer, max_bytes: int = limits.MAX_REQUEST_BYTES) -> Request:
    """Raises InvalidRequest, or one of its kinds, with the field's path."""
    if len(data) > max_bytes:
        raise InvalidRequest("", f"has more than {max_bytes} bytes")
    try:
        asked = inference_pb2.InferenceRequest.FromString(data)
    except DecodeError:  # its text says nothing of use, and could quote
        raise InvalidRequest("", "is not an InferenceRequest: wrong wire format, or text that is not UTF-8") from None
    _refuse_unknown(asked)
    _refuse_unimplemented(asked)
    _check_name(asked.request_id, "request_id", limits.MAX_REQUEST_ID_BYTES)
    _check_name(asked.model, "model", limits.MAX_NAME_BYTES)
    if asked.model not in ("", offer.model):
        raise ModelNotFound("model", "is not served by this node")
    _check_name(asked.adapter, "adapter", limits.MAX_NAME_BYTES)
    if asked.adapter and asked.adapter not in offer.adapters:
        raise ModelNotFound("adapter", "is none of the model's adapters")
    prompt, offered = _prompt(asked, offer), check_tools(asked, offer.call_form)
    constrained = constraint.compiled(asked.constraint) if asked.HasField("constraint") else ""
    return Request(
        request_id=asked.request_id,
        prompt=prompt,
        sampling=check_sampling(asked.sampling, offer.vocab_size),
        stop_strings=_stop_strings(asked),
        stop_token_ids=_stop_token_ids(asked, offer.vocab_size),
        logprobs=_logprobs(asked),
        adapter=asked.adapter,
        is_background=asked.background,
        grammar=constrained or offered.grammar,
        tools=offered,
    )


def _refuse_unknown(asked: inference_pb2.InferenceRequest) -> None:
    size = asked.ByteSize()
    known = inference_pb2.InferenceRequest()
    known.CopyFrom(asked)
    known.DiscardUnknownFields()
    if (extra := size - known.ByteSize()) > 0:
        raise InvalidRequest("", f"has {extra} bytes in fields that the contract does not have")


def _refuse_unimplemented(asked: inference_pb2.InferenceRequest) -> None:
    if asked.template_source:
        raise InvalidRequest("template_source", "is not taken: templates come from the model's bundle only")
    if asked.HasField("turn"):
        raise Unsupported("turn", "is not offered by this node")


def _check_name(text: str, where: str, limit: int) -> None:
    if len(text) > limit:
        raise InvalidRequest(where, f"has {len(text)} characters, the limit is {limit}")
    if _PRINTABLE.fullmatch(text) is None:
        raise InvalidRequest(where, "holds something other than printable ASCII")


def _prompt(asked: inference_pb2.InferenceRequest, offer: Offer) -> ChatPrompt | ValuesPrompt | RawPrompt:
    match asked.WhichOneof("prompt"):
        case "chat":
            return _chat(asked.chat, offer)
        case "template_prompt":
            return _values(asked.template_prompt, offer)
        case "raw_text":
            return RawPrompt(asked.raw_text)
        case _:
            raise InvalidRequest("prompt", "is missing: one of chat, template_prompt, raw_text")


def _chat(chat: inference_pb2.Chat, offer: Offer) -> ChatPrompt:
    if not offer.has_chat:
        raise Unsupported("chat", "is not offered: the model's bundle has no chat template")
    return ChatPrompt(check_chat(chat, has_tools=offer.call_form is not None))


def _values(prompt: inference_pb2.TemplatePrompt, offer: Offer) -> ValuesPrompt:
    if len(prompt.values) > limits.MAX_TEMPLATE_VALUES:
        count = len(prompt.values)
        raise InvalidRequest("template_prompt.values", f"has {count} values, the limit is {limits.MAX_TEMPLATE_VALUES}")
    _check_name(prompt.template_id, "template_prompt.template_id", limits.MAX_NAME_BYTES)
    parameters = offer.template_parameters(prompt.template_id)
    if parameters is None:
        raise InvalidRequest("template_prompt.template_id", "names no template for values in the model's bundle")
    if any(name not in parameters for name in prompt.values):
        raise InvalidRequest("template_prompt.values", f"has a name that is none of: {', '.join(sorted(parameters))}")
    return ValuesPrompt(prompt.template_id, dict(prompt.values))


def _stop_strings(asked: inference_pb2.InferenceRequest) -> tuple[bytes, ...]:
    count, most = len(asked.stop_strings), limits.MAX_STOP_STRINGS
    if count > most:
        raise InvalidRequest("stop_strings", f"has {count} strings, the limit is {most}")
    stops = tuple(text.encode("utf-8") for text in asked.stop_strings)
    for n, stop in enumerate(stops):
        if not 1 <= len(stop) <= limits.MAX_STOP_STRING_BYTES:
            problem = f"has {len(stop)} bytes, 1 to {limits.MAX_STOP_STRING_BYTES} are taken"
            raise InvalidRequest(f"stop_strings[{n}]", problem)
    return stops


def _stop_token_ids(asked: inference_pb2.InferenceRequest, vocab_size: int) -> tuple[int, ...]:
    count, most = len(asked.stop_token_ids), limits.MAX_STOP_TOKEN_IDS
    if count > most:
        raise InvalidRequest("stop_token_ids", f"has {count} ids, the limit is {most}")
    ids = enumerate(asked.stop_token_ids)
    return tuple(check_token_id(token_id, f"stop_token_ids[{n}]", vocab_size) for n, token_id in ids)


def _logprobs(asked: inference_pb2.InferenceRequest) -> int | None:
    if not asked.HasField("logprobs"):
        return None
    if asked.logprobs > limits.MAX_LOGPROBS:
        raise InvalidRequest("logprobs", f"asks for more than {limits.MAX_LOGPROBS} alternatives")
    return asked.logprobs


_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
