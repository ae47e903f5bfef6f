"""A dialogue and the tools it may use, as chat templates of published models expect them.

Everything here comes from the request and is literal text, whatever it spells; roles alone are words of ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, repr=False)
class Call:
    """An earlier call by the model."""

    call_id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class Message:
    """`role` is one of `templates.ROLES`; the last three are set where the role has them."""

    role: str
    content: str
    calls: tuple[Call, ...] = ()
    call_id: str = ""
    """Of a tool's message: the call that it answers."""
    name: str = ""
    """Of a tool's message: the tool."""


@dataclass(frozen=True, slots=True, repr=False)
class Tool:
    """`parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: dict[str, Any] = field(default_factory=dict)


def row(message: Message, role: str) -> dict[str, Any]:
    """What a template finds in `messages`."""
    found: dict[str, Any] = {"role": role, "content": message.content}
    if message.calls:
        found["tool_calls"] = [_call(call) for call in message.calls]
    if message.call_id:
        found |= {"tool_call_id": message.call_id, "name": message.name}
    return found


def offered(tools: Sequence[Tool]) -> list[dict[str, Any]] | None:
    """What a template finds in `tools`."""
    return [_tool(tool) for tool in tools] or None


def texts(messages: Sequence[Message], tools: Sequence[Tool]) -> Iterator[str]:
    """Every string of them that a template could write, keys included."""
    for message in messages:
        yield from (message.content, message.call_id, message.name)
        for call in message.calls:
            yield from (call.call_id, call.name)
            yield from _strings(call.arguments)
    for tool in tools:
        yield from (tool.name, tool.description)
        yield from _strings(tool.parameters)


def _call(call: Call) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _strings(value: Any) -> Iterator[str]:
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from _strings(item)
        case dict():
            yield from value
            for item in value.values():
                yield from _strings(item)
        case _:
            pass
