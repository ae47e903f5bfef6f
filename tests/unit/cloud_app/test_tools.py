"""Each refusal of tools and of the choice among them: by field, with its limit, and never with what it said."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from doubles.tool_model import BY_TOKEN, OPEN, allowed

from tie.api.inference.v1 import inference_pb2 as pb
from tie.cloud_app.failures import told
from tie.cloud_app.intake import Offer, Request, parse_request
from tie.contracts import limits
from tie.contracts.errors import InvalidRequest
from tie.prompting.chat import Tool

MARKER = "MARKER7f3a"
OFFER = Offer("tiny", 512, True, lambda _: None, call_form=BY_TOKEN)
SCHEMA = {"type": "object", "properties": {MARKER: {"type": "integer", "description": MARKER}}, "required": [MARKER]}
Change = Callable[[pb.InferenceRequest], Any]


def parse(*changes: Change, offer: Offer = OFFER, tools: int = 2) -> Request:
    asked = pb.InferenceRequest()
    asked.chat.messages.add(role=pb.ROLE_USER).parts.add(text="hi")
    for n in range(tools):
        asked.tools.add(name=f"{MARKER}-{n}", description=MARKER, parameters_json_schema=json.dumps(SCHEMA))
    for change in changes:
        change(asked)
    return parse_request(asked.SerializeToString(), offer)


def first(**fields: str) -> Change:
    return lambda r: [setattr(r.tools[0], name, value) for name, value in fields.items()]


def schema(value: Any) -> Change:
    return first(parameters_json_schema=value if isinstance(value, str) else json.dumps(value))


def choice(**made: Any) -> Change:
    return lambda r: r.tool_choice.CopyFrom(pb.ToolChoice(**made))


def nested(depth: int) -> Any:
    value: Any = MARKER
    for _ in range(depth):
        value = [value]
    return {"type": "object", "default": value}


WHERE = "tools[0].parameters_json_schema"
INVALID: list[tuple[str, str, Change]] = [
    ("tools", "65 tools, the limit is 64", lambda r: [r.tools.add(name=f"t{n}") for n in range(63)]),
    ("tools[0].name", "does not match", first(name="")),
    ("tools[0].name", "does not match", first(name="x" * 65)),
    ("tools[0].name", "does not match", first(name=f"{MARKER}.x")),
    ("tools[0].name", "does not match", first(name=f"{MARKER}\n")),
    ("tools[0].name", "does not match", first(name="é")),
    ("tools[1].name", "name of an earlier tool", lambda r: setattr(r.tools[1], "name", r.tools[0].name)),
    ("tools[0].description", "16385 bytes, the limit is 16384", first(description="x" * 16385)),
    (WHERE, "65537 bytes, the limit is 65536", schema(" " * 65537)),
    (WHERE, "not JSON", schema(f"{{{MARKER}")),
    (WHERE, "not JSON", schema('{"type": "object", "type": "object"}')),
    (WHERE, "not a JSON object", schema([SCHEMA])),
    (WHERE, "its type must be object", schema({"properties": {MARKER: {}}})),
    (WHERE, "its type must be object", schema({})),
    (WHERE, "deeper than 192", schema(nested(193))),
    (f"{WHERE}.properties", "not an object of schemas", schema({"type": "object", "properties": [MARKER]})),
    ("tool_choice", "no choice", choice(auto=False)),
    ("tool_choice", "no choice", choice(required=False)),
    ("tool_choice", "no choice", choice(name="")),
    ("tool_choice.name", "the name of no tool", choice(name=f"{MARKER}-2")),
    ("constraint", "one of both", lambda r: setattr(r.constraint, "regex", MARKER)),
    ("tools", "with a chat only", lambda r: setattr(r, "raw_text", MARKER)),
]


@pytest.mark.parametrize(("where", "problem", "change"), INVALID)
def test_what_is_out_of_its_bounds_is_refused_with_the_limit(where: str, problem: str, change: Change) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(change)
    message = told(caught.value)
    assert (message.where, message.kind) == (where, pb.ERROR_KIND_INVALID_REQUEST)
    assert problem in message.message
    assert MARKER not in f"{message}{caught.value!r}"


@pytest.mark.parametrize("freedom", ["auto", "required", "none", "name"])
def test_what_cannot_be_enforced_is_refused_whatever_may_be_called(freedom: str) -> None:
    made = choice(**{freedom: f"{MARKER}-0" if freedom == "name" else True})
    with pytest.raises(InvalidRequest) as caught:
        parse(made, lambda r: setattr(r.tools[1], "parameters_json_schema", '{"type": "object", "not": {}}'))
    message = told(caught.value)
    assert (message.where, message.kind) == ("tools[1].parameters_json_schema.not", pb.ERROR_KIND_UNSUPPORTED)


@pytest.mark.parametrize("freedom", [{"required": True}, {"name": MARKER}])
def test_a_call_is_not_asked_for_without_tools(freedom: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="there are no tools") as caught:
        parse(choice(**freedom), tools=0)
    assert caught.value.where == f"tool_choice.{next(iter(freedom))}"


@pytest.mark.parametrize("change", [choice(auto=True), choice(none=True), choice(required=True)])
def test_a_bundle_that_describes_no_calls_takes_no_tools(change: Change) -> None:
    with pytest.raises(InvalidRequest, match="the model's bundle describes no tool calls") as caught:
        parse(change, offer=replace(OFFER, call_form=None))
    assert (caught.value.where, told(caught.value).kind) == ("tools", pb.ERROR_KIND_UNSUPPORTED)


@pytest.mark.parametrize("change", [choice(auto=True), choice(none=True), lambda r: None])
def test_without_tools_nothing_is_called(change: Change) -> None:
    found = parse(change, tools=0, offer=replace(OFFER, call_form=None))
    assert (found.tools.offered, found.tools.form, found.grammar) == ((), None, "")


def test_the_choice_decides_what_the_answer_may_begin_with() -> None:
    free = [parse(), parse(choice(auto=True))]
    for found in free:
        assert {OPEN, ord("a")} <= allowed(found.grammar, [])
        assert found.tools.form is BY_TOKEN
    for found in (parse(choice(required=True)), parse(choice(name=f"{MARKER}-1"))):
        assert allowed(found.grammar, []) == {OPEN}


def test_a_tool_by_name_is_the_only_one() -> None:
    grammar = parse(choice(name=f"{MARKER}-1")).grammar
    before = [OPEN, *BY_TOKEN.head(f"{MARKER}-1").encode()]
    assert allowed(grammar, before) == {ord("{")}
    assert f"{MARKER}-0" not in grammar


def test_tools_that_may_not_be_called_are_told_of_and_bind_nothing() -> None:
    found = parse(choice(none=True), lambda r: setattr(r.constraint, "regex", "a"))
    assert [tool.name for tool in found.tools.offered] == [f"{MARKER}-0", f"{MARKER}-1"]
    assert found.tools.form is None
    assert found.grammar == parse(lambda r: setattr(r.constraint, "regex", "a"), tools=0).grammar


def test_the_prompt_is_told_of_schemas_as_they_came() -> None:
    found = parse(lambda r: r.tools.add(name="plain")).tools.offered
    assert found[0] == Tool(f"{MARKER}-0", MARKER, SCHEMA)
    assert found[2] == Tool("plain", "", {"type": "object", "properties": {}})
    assert MARKER not in f"{found!r}{parse().tools!r}"


def test_bounds_themselves_are_taken() -> None:
    padded = '{"type": "object"' + " " * (limits.MAX_TOOL_SCHEMA_BYTES - 18) + "}"
    found = parse(
        first(name="x" * 64, description="x" * limits.MAX_TOOL_DESCRIPTION_BYTES, parameters_json_schema=padded),
        lambda r: [r.tools.add(name=f"t{n}") for n in range(62)],
    )
    assert len(found.tools.offered) == limits.MAX_TOOLS
