"""Whatever a model likes, each of its calls names an offered tool and brings arguments that satisfy its schema."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest
from doubles.tool_model import (
    BY_TEXT,
    BY_TOKEN,
    CLOSE,
    EOS,
    FORMS,
    OPEN,
    OTHER,
    TooLong,
    allowed,
    calls_in,
    sample,
)

from tie.afm_runtime.decoding.grammar import GrammarFault
from tie.constraints import tools
from tie.constraints.call_form import CallForm
from tie.constraints.errors import BadConstraint, NotEnforceable
from tie.constraints.tools import CallableTool

WHERE = "tools[0].parameters_json_schema"
SHORT = {"type": "string", "maxLength": 5}
PROPERTIES: list[dict[str, Any]] = [
    SHORT,
    {"type": "integer", "minimum": -3, "maximum": 40},
    {"type": "boolean"},
    {"enum": ["north", "south", 3]},
    {"type": "array", "items": SHORT, "maxItems": 2},
    {"type": "object", "properties": {"deep": {"type": "null"}}, "additionalProperties": False},
    {"anyOf": [{"type": "null"}, {"const": 'quote " and </tool'}]},
    {"type": "string", "format": "date"},
    {"$ref": "#/$defs/pair"},
]
SAMPLES = 20
SETS = 30


def tool_set(seed: int) -> list[tuple[str, dict[str, Any] | None]]:
    """One to four tools, some without parameters."""
    rng = random.Random(seed)
    made: list[tuple[str, dict[str, Any] | None]] = []
    for n in range(rng.randint(1, 4)):
        properties = {f"p{n}": choice for n, choice in enumerate(rng.sample(PROPERTIES, rng.randint(0, 3)))}
        schema = {
            "type": "object",
            "$defs": {"pair": {"type": "array", "prefixItems": [SHORT], "items": False}},
            "properties": properties,
            "required": rng.sample(sorted(properties), rng.randint(0, len(properties))),
            "additionalProperties": False,
        }
        made.append((rng.choice(["get", "get-it", "Get_2"]) + str(n), None if rng.random() < 0.15 else schema))
    return made


def callables(made: Sequence[tuple[str, dict[str, Any] | None]]) -> list[CallableTool]:
    return [
        CallableTool(name, tools.read_parameters(json.dumps(schema) if schema is not None else "", WHERE), WHERE)
        for name, schema in made
    ]


def grammar(freedom: str, form: CallForm, ready: Sequence[CallableTool]) -> str:
    if freedom == "name":
        return tools.named(form, ready[0])
    return (tools.at_will if freedom == "auto" else tools.required)(form, ready)


def check(answer: Sequence[int], form: CallForm, offered: dict[str, dict[str, Any] | None]) -> int:
    """How many calls there are; each is of an offered tool, and as its schema has it."""
    found = calls_in(answer, form)
    for text in found:
        inside = form.described.inside
        assert text.startswith(f"{inside}{{")
        assert text.endswith(f"}}{inside}")
        call = json.loads(text)
        assert list(call) == [form.described.name_key, form.described.arguments_key]
        name, arguments = call.values()
        jsonschema.validate(arguments, offered[name] or {"type": "object", "maxProperties": 0})
    return len(found)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("[]", BadConstraint),
        ("true", BadConstraint),
        ("{}", BadConstraint),
        ('{"type": "array"}', BadConstraint),
        ('{"type": ["object", "null"]}', BadConstraint),
        ('{"type": "object", "not": {}}', NotEnforceable),
        ('{"type": "object", "type": "object"}', BadConstraint),
        ('{"type": "object", "x-guidance": {}}', NotEnforceable),
    ],
)
def test_what_is_no_schema_of_an_object_is_refused_at_its_place(text: str, kind: type[Exception]) -> None:
    with pytest.raises((BadConstraint, NotEnforceable), match=r"tools\[0\]\.parameters_json_schema") as refused:
        tools.read_parameters(text, WHERE)
    assert isinstance(refused.value, kind)


def test_a_schema_that_does_not_compile_is_refused_at_its_place() -> None:
    impossible = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 3, "maximum": 1}}}
    made = [*callables([("good", None)]), *callables([("bad", impossible | {"required": ["a"]})])]
    with pytest.raises(NotEnforceable) as refused:
        tools.at_will(BY_TOKEN, made)
    assert refused.value.where.startswith(f"{WHERE}.properties[0]")
    assert "bad" not in str(refused.value)


def test_tools_beyond_the_compiled_size_are_refused() -> None:
    large = {"type": "object", "properties": {"a": {"enum": ["x" * 50_000]}}}
    made = callables([(f"t{n}", large) for n in range(6)])
    with pytest.raises(BadConstraint, match="the limit is 262144") as refused:
        tools.required(BY_TOKEN, made)
    assert refused.value.where == "tools"


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_no_malformed_call_can_follow_the_marker(form: CallForm) -> None:
    made = callables([("get", None)])
    begin = [form.begin] if isinstance(form.begin, int) else list(form.begin.encode())
    rest = [*form.head("get").encode(), *b"{}", *form.tail.encode()]
    end = [form.end] if isinstance(form.end, int) else list(form.end.encode())
    for compiled, before in ((tools.at_will(form, made), list(b"hm ")), (tools.required(form, made), [])):
        call = [*before, *begin, *rest, *end]
        for cut in range(len(before) + len(begin), len(call)):
            assert allowed(compiled, call[:cut]) == {call[cut]}
        assert EOS in allowed(compiled, call)


def test_only_markers_end_free_text_and_only_they_are_control_tokens_in_it() -> None:
    compiled = tools.at_will(BY_TOKEN, callables([("get", None)]))
    for text in (b"", b"text", b"<tool_call>", b"half <tool_", b"line\n"):
        may_follow = allowed(compiled, list(text))
        assert {EOS, OPEN} <= may_follow
        assert may_follow.isdisjoint({CLOSE, OTHER})
    by_text = tools.at_will(BY_TEXT, callables([("get", None)]))
    assert EOS in allowed(by_text, list(b"half <tool_"))
    assert EOS not in allowed(by_text, list(b"whole <tool_call>"))
    assert allowed(by_text, list(b"x")).isdisjoint({OPEN, CLOSE, OTHER})


def test_a_required_call_lets_no_text_come_first_or_after() -> None:
    compiled = tools.required(BY_TOKEN, callables([("get", None)]))
    assert allowed(compiled, []) == {OPEN}
    call = [OPEN, *BY_TOKEN.head("get").encode(), *b"{}", *BY_TOKEN.tail.encode(), CLOSE]
    assert allowed(compiled, call) == {EOS, ord("\n")}
    assert allowed(compiled, [*call, ord("\n")]) == {OPEN}
    assert allowed(compiled, [*call, *(ord("\n"), *call) * 5]) == {EOS, ord("\n")}


def test_a_tool_that_is_not_offered_cannot_be_named() -> None:
    compiled = tools.named(BY_TEXT, callables([("get", None)])[0])
    with pytest.raises(GrammarFault):
        allowed(compiled, list(b'<tool_call>\n{"name": "put'))


@pytest.mark.parametrize("freedom", ["auto", "required", "name"])
def test_every_call_of_a_careless_model_is_valid(freedom: str) -> None:
    calls = answers = 0
    for seed in range(SETS):
        form = list(FORMS.values())[seed % len(FORMS)]
        made = tool_set(seed)
        ready = callables(made)
        compiled = grammar(freedom, form, ready)
        offered = dict(made[:1] if freedom == "name" else made)
        for n in range(SAMPLES):
            try:
                answer = sample(compiled, SAMPLES * seed + n, form)
            except TooLong:
                continue
            found = check(answer, form, offered)
            assert freedom == "auto" or found
            assert freedom != "name" or found == 1
            calls, answers = calls + found, answers + 1
    assert answers > 0.9 * SETS * SAMPLES
    assert calls > 0.5 * answers
