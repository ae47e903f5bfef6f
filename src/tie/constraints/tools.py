"""Turns offered tools into the text form that keeps a model to calls of them, and to nothing that only looks like one.

Where calls are free, the model writes text until it writes the marker that opens a call; from there the call alone may
come. A marker that is a token without spelling stands in the grammar by its id, so no text can be one.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from llguidance import LLMatcher

from tie.constraints import compiling, schema
from tie.constraints.budget import MAX_COMPILED_BYTES
from tie.constraints.call_form import ITEM_SEPARATOR, KEY_SEPARATOR, CallForm, Marker
from tie.constraints.errors import BadConstraint

WHERE: Final = "tools"
_NO_PARAMETERS: Final[dict[str, Any]] = {"type": "object", "properties": {}, "additionalProperties": False}
_OPTIONS: Final[Any] = compiling.OPTIONS | {"item_separator": ITEM_SEPARATOR, "key_separator": KEY_SEPARATOR}


@dataclass(frozen=True, slots=True, repr=False)
class CallableTool:
    """A tool as the grammar sees it. `where` is the place of its schema in the request."""

    name: str
    parameters: dict[str, Any]
    where: str


def read_parameters(text: str, where: str) -> dict[str, Any]:
    """A tool's schema; without one, its arguments are an empty object. Raises BadConstraint or NotEnforceable."""
    if not text:
        return _NO_PARAMETERS
    checked = schema.read(text, where)
    if not isinstance(checked, dict) or checked.get("type") != "object":
        raise BadConstraint(where, "is not the schema of an object: its type must be object")
    return checked


def at_will(form: CallForm, tools: Sequence[CallableTool]) -> str:
    """Text and calls in any order, or neither. Raises BadConstraint."""
    if isinstance(form.begin, int):
        begin, rules = f"TEXT {_marker(form.begin)}", ""
    else:
        # Lazy: the first marker that is completed ends the text, so no text can hold one.
        begin, rules = "begin", f"begin[lazy]: TEXT {_marker(form.begin)}\n"
    rules += "TEXT: /(.|\\n)*/\n"
    return _compiled(f"start: ({begin} call)* TEXT\n{rules}", form, tools)


def required(form: CallForm, tools: Sequence[CallableTool]) -> str:
    """Calls and nothing else, one at least. Raises BadConstraint."""
    more = f"{_text(form.between)} {_marker(form.begin)} call"
    return _compiled(f"start: {_marker(form.begin)} call ({more})*\n", form, tools)


def named(form: CallForm, tool: CallableTool) -> str:
    """One call of this tool. Raises BadConstraint."""
    return _compiled(f"start: {_marker(form.begin)} call\n", form, [tool])


def _compiled(rules: str, form: CallForm, tools: Sequence[CallableTool]) -> str:
    calls = " | ".join(f"{_text(form.head(tool.name))} @tool_{n}" for n, tool in enumerate(tools))
    lark = f"{rules}call: ({calls}) {_text(form.tail)} {_marker(form.end)}\n"
    grammars = [{"name": "calls", "lark_grammar": lark}]
    grammars += [{"name": f"tool_{n}", "json_schema": _as_object(tool)} for n, tool in enumerate(tools)]
    compiled = json.dumps({"grammars": grammars}, ensure_ascii=False)
    if (size := len(compiled.encode("utf-8"))) > MAX_COMPILED_BYTES:
        raise BadConstraint(WHERE, f"compile to {size} bytes, the limit is {MAX_COMPILED_BYTES}")
    try:
        return compiling.tried(WHERE, compiled)
    except BadConstraint:
        _blame(tools)
        raise


def _blame(tools: Sequence[CallableTool]) -> None:
    """Raises NotEnforceable for the first tool that does not compile by itself, as far as there is time to look."""
    deadline = time.monotonic() + compiling.BLAME_S
    for tool in tools:
        if time.monotonic() > deadline:
            return
        compiling.try_schema(tool.parameters, tool.where)


def _as_object(tool: CallableTool) -> Any:
    form: dict[str, Any] = json.loads(LLMatcher.grammar_from_json_schema(tool.parameters, overrides=_OPTIONS))
    return form["grammars"][0]["json_schema"]


def _marker(marker: Marker) -> str:
    return f"<[{marker}]>" if isinstance(marker, int) else _text(marker)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
