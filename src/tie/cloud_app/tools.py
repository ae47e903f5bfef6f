"""The tools of a request and its choice among them, checked; and the grammar that keeps the answer to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from tie.api.inference.v1 import inference_pb2
from tie.cloud_app.conversation import NO_TOOL_CALLS, TOOL_NAME
from tie.cloud_app.json_object import json_object
from tie.constraints.call_form import CallForm
from tie.contracts import limits
from tie.contracts.errors import InvalidRequest, Unsupported
from tie.prompting.chat import Tool

_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}}

Freedom = Literal["auto", "none", "required", "name"]


@dataclass(frozen=True, slots=True, repr=False)
class Tools:
    """What the prompt tells of, and what the answer may do with it."""

    offered: tuple[Tool, ...] = ()
    form: CallForm | None = None
    """How calls are read out of the answer; None where all of it is text."""
    grammar: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(tool.name for tool in self.offered)


NONE: Final = Tools()


def check_tools(asked: inference_pb2.InferenceRequest, form: CallForm | None) -> Tools:
    """`form`: how the model writes calls; None where it is not known to. Raises InvalidRequest or Unsupported."""
    freedom = _freedom(asked)
    if not asked.tools:
        if freedom in ("required", "name"):
            raise InvalidRequest(f"tool_choice.{freedom}", "asks for a call, but there are no tools")
        return NONE
    if form is None:
        raise Unsupported("tools", NO_TOOL_CALLS)
    if asked.WhichOneof("prompt") != "chat":
        raise InvalidRequest("tools", "go with a chat only: no other prompt tells the model of them")
    if freedom != "none" and asked.HasField("constraint"):
        raise InvalidRequest("constraint", "excludes tools that may be called: one of both")
    if len(asked.tools) > limits.MAX_TOOLS:
        raise InvalidRequest("tools", f"has {len(asked.tools)} tools, the limit is {limits.MAX_TOOLS}")
    offered = tuple(_tool(tool, f"tools[{n}]") for n, tool in enumerate(asked.tools))
    names = [tool.name for tool in offered]
    for n, name in enumerate(names):
        if name in names[:n]:
            raise InvalidRequest(f"tools[{n}].name", "is the name of an earlier tool")
    if freedom == "name" and asked.tool_choice.name not in names:
        raise InvalidRequest("tool_choice.name", "is the name of no tool")
    grammar = _grammar(asked.tools, freedom, asked.tool_choice.name, form)
    return Tools(offered, form if grammar else None, grammar)


def _freedom(asked: inference_pb2.InferenceRequest) -> Freedom:
    if not asked.HasField("tool_choice"):
        return "auto"
    choice = asked.tool_choice.WhichOneof("choice")
    if choice is None or not getattr(asked.tool_choice, choice):
        raise InvalidRequest("tool_choice", "makes no choice")
    return choice


def _tool(tool: inference_pb2.Tool, where: str) -> Tool:
    if TOOL_NAME.fullmatch(tool.name) is None:
        raise InvalidRequest(f"{where}.name", f"does not match {TOOL_NAME.pattern}")
    if (size := len(tool.description.encode("utf-8"))) > limits.MAX_TOOL_DESCRIPTION_BYTES:
        problem = f"has {size} bytes, the limit is {limits.MAX_TOOL_DESCRIPTION_BYTES}"
        raise InvalidRequest(f"{where}.description", problem)
    if not tool.parameters_json_schema:
        return Tool(tool.name, tool.description, dict(_NO_PARAMETERS))
    parameters = json_object(
        tool.parameters_json_schema,
        f"{where}.parameters_json_schema",
        max_bytes=limits.MAX_TOOL_SCHEMA_BYTES,
        max_depth=limits.MAX_TOOL_SCHEMA_DEPTH,
    )
    return Tool(tool.name, tool.description, parameters)


def _grammar(tools: Sequence[inference_pb2.Tool], freedom: Freedom, name: str, form: CallForm) -> str:
    """Every schema is read, those of tools that may not be called too; empty where none may."""
    # Late: few requests bring tools, and every app would pay for the import.
    from tie.constraints import tools as grammars

    callable_tools = []
    for n, tool in enumerate(tools):
        where = f"tools[{n}].parameters_json_schema"
        parameters = grammars.read_parameters(tool.parameters_json_schema, where)
        callable_tools.append(grammars.CallableTool(tool.name, parameters, where))
    match freedom:
        case "auto":
            return grammars.at_will(form, callable_tools)
        case "required":
            return grammars.required(form, callable_tools)
        case "name":
            return grammars.named(form, next(tool for tool in callable_tools if tool.name == name))
        case "none":
            return ""
