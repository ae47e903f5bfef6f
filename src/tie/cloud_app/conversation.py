"""The messages of a chat, each checked: roles, sizes, and that a tool's message answers a call that was made."""

from __future__ import annotations

import re
from typing import Final

from tie.api.inference.v1 import inference_pb2
from tie.cloud_app.json_object import json_object
from tie.contracts import limits
from tie.contracts.errors import InvalidRequest, Unsupported
from tie.prompting.chat import Call, Message

TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_CALL_ID: Final = re.compile(rf"[!-~]{{1,{limits.MAX_TOOL_CALL_ID_BYTES}}}")
_ROLES: Final = {
    inference_pb2.ROLE_SYSTEM: "system",
    inference_pb2.ROLE_USER: "user",
    inference_pb2.ROLE_ASSISTANT: "assistant",
    inference_pb2.ROLE_TOOL: "tool",
}
NO_TOOL_CALLS: Final = "is not offered: the model's bundle describes no tool calls"


def check_chat(chat: inference_pb2.Chat, *, has_tools: bool) -> tuple[Message, ...]:
    """`has_tools`: the model calls tools, so a dialogue may hold calls and results. Raises InvalidRequest."""
    if not 1 <= len(chat.messages) <= limits.MAX_MESSAGES:
        count = len(chat.messages)
        raise InvalidRequest("chat.messages", f"has {count} messages, 1 to {limits.MAX_MESSAGES} are taken")
    names: dict[str, str] = {}  # of the tools that were called so far, by the id of the call
    return tuple(
        _message(message, f"chat.messages[{n}]", names, has_tools=has_tools) for n, message in enumerate(chat.messages)
    )


def _message(message: inference_pb2.Message, where: str, names: dict[str, str], *, has_tools: bool) -> Message:
    if message.role not in _ROLES:
        raise InvalidRequest(f"{where}.role", "is none of system, user, assistant, tool")
    role = _ROLES[message.role]
    if (message.tool_calls or message.tool_call_id or role == "tool") and not has_tools:
        field = "tool_calls" if message.tool_calls else "tool_call_id" if message.tool_call_id else "role"
        raise Unsupported(f"{where}.{field}", NO_TOOL_CALLS)
    if message.tool_calls and role != "assistant":
        raise InvalidRequest(f"{where}.tool_calls", "has a place in an assistant's message only")
    if message.tool_call_id and role != "tool":
        raise InvalidRequest(f"{where}.tool_call_id", "has a place in a tool's message only")
    if len(message.parts) > limits.MAX_PARTS_PER_MESSAGE:
        count = len(message.parts)
        raise InvalidRequest(f"{where}.parts", f"has {count} parts, the limit is {limits.MAX_PARTS_PER_MESSAGE}")
    text = "".join(_text(part, f"{where}.parts[{n}]") for n, part in enumerate(message.parts))
    if role == "tool":
        return Message(role, text, call_id=message.tool_call_id, name=_answered(message, where, names))
    return Message(role, text, _calls(message, f"{where}.tool_calls", names))


def _answered(message: inference_pb2.Message, where: str, names: dict[str, str]) -> str:
    """The tool whose result this is."""
    if not message.tool_call_id:
        raise InvalidRequest(f"{where}.tool_call_id", "is missing: a tool's message names the call that it answers")
    if message.tool_call_id not in names:
        raise InvalidRequest(f"{where}.tool_call_id", "names no call of an earlier message")
    return names[message.tool_call_id]


def _calls(message: inference_pb2.Message, where: str, names: dict[str, str]) -> tuple[Call, ...]:
    if len(message.tool_calls) > limits.MAX_TOOL_CALLS:
        raise InvalidRequest(where, f"has {len(message.tool_calls)} calls, the limit is {limits.MAX_TOOL_CALLS}")
    calls = tuple(_call(call, f"{where}[{n}]") for n, call in enumerate(message.tool_calls))
    for n, call in enumerate(calls):
        if call.call_id in names:
            raise InvalidRequest(f"{where}[{n}].id", "is the id of an earlier call")
        names[call.call_id] = call.name
    return calls


def _call(call: inference_pb2.ToolCall, where: str) -> Call:
    if _CALL_ID.fullmatch(call.id) is None:
        problem = f"is not 1 to {limits.MAX_TOOL_CALL_ID_BYTES} printable ASCII characters without space"
        raise InvalidRequest(f"{where}.id", problem)
    if TOOL_NAME.fullmatch(call.name) is None:
        raise InvalidRequest(f"{where}.name", f"does not match {TOOL_NAME.pattern}")
    arguments = json_object(
        call.arguments_json,
        f"{where}.arguments_json",
        max_bytes=limits.MAX_ARGUMENTS_BYTES,
        max_depth=limits.MAX_ARGUMENTS_DEPTH,
    )
    return Call(call.id, call.name, arguments)


def _text(part: inference_pb2.Part, where: str) -> str:
    match part.WhichOneof("part"):
        case "text":
            return part.text
        case "image":
            raise Unsupported(f"{where}.image", "images are not offered by this node")
        case _:
            raise InvalidRequest(where, "is empty: one of text, image")
