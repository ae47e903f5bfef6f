"""Tools that a model may call, and calls of them, as an application speaks of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tie.api.inference.v1 import inference_pb2 as pb
from tie.contracts.errors import InvalidRequest

FREE_CHOICES: Final = ("auto", "none", "required")


@dataclass(frozen=True, slots=True, repr=False)
class Tool:
    """`parameters` is a JSON Schema of an object; None for a tool that takes none."""

    name: str
    description: str = ""
    parameters: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return "<Tool>"


@dataclass(frozen=True, slots=True, repr=False)
class ToolCall:
    """A call by the model. Its `id` goes into the message that brings the result."""

    id: str
    name: str
    arguments_json: str

    def __repr__(self) -> str:
        return f"<ToolCall with {len(self.arguments_json)} characters of arguments>"


def put_tools(request: pb.InferenceRequest, tools: Sequence[Tool], choice: str) -> None:
    """`choice`: one of FREE_CHOICES, a tool's name, or empty for the node's default. Raises InvalidRequest."""
    for place, tool in enumerate(tools):
        where = f"tools[{place}]"
        try:
            schema = json.dumps(dict(tool.parameters), ensure_ascii=False) if tool.parameters else ""
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{where}.parameters_json_schema", "is no JSON") from error
        try:
            request.tools.add(name=tool.name, description=tool.description, parameters_json_schema=schema)
        except (TypeError, ValueError) as error:  # half a surrogate pair, too
            raise InvalidRequest(where, "holds something other than text") from error
    if choice in FREE_CHOICES:
        setattr(request.tool_choice, choice, True)
    elif choice:
        request.tool_choice.name = choice


def put_calls(message: pb.Message, calls: Sequence[ToolCall], where: str) -> None:
    """Earlier calls, into an assistant's message. Raises InvalidRequest."""
    for place, call in enumerate(calls):
        try:
            message.tool_calls.add(id=call.id, name=call.name, arguments_json=call.arguments_json)
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{where}.tool_calls[{place}]", "holds something other than text") from error


def read_tools(text: str, where: str) -> list[Tool]:
    """A JSON list of tools, each plain or in the form {"type": "function", "function": …}. Raises InvalidRequest."""
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidRequest(where, "is not JSON") from None
    if not isinstance(entries, list):
        raise InvalidRequest(where, "is not a list of tools")
    return [_tool(entry, f"{where}[{place}]") for place, entry in enumerate(entries)]


def _tool(entry: Any, where: str) -> Tool:
    if isinstance(entry, dict) and entry.get("type") == "function":
        entry = entry.get("function")
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise InvalidRequest(where, "is not an object with a name")
    if unknown := len(entry.keys() - {"name", "description", "parameters", "strict"}):
        raise InvalidRequest(where, f"has {unknown} members beside name, description and parameters")
    description, parameters = entry.get("description") or "", entry.get("parameters")
    if not isinstance(description, str) or not isinstance(parameters, dict | None):
        raise InvalidRequest(where, "has a description that is no text, or parameters that are no object")
    return Tool(entry["name"], description, parameters)
