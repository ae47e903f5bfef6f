"""Every answer of a model that cares for nothing satisfies the schema, says a validator that is not ours."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from doubles.constrained_model import TooLong, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.constraints import compiling
from tie.constraints.errors import BadConstraint, NotEnforceable

SHORT = {"type": "string", "maxLength": 5}
SCHEMAS: list[Any] = [
    {"type": "integer", "minimum": 3, "maximum": 10},
    {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 5, "multipleOf": 2},
    {"type": "number", "minimum": 0.5, "exclusiveMaximum": 2},
    {"type": "number", "multipleOf": 0.25, "minimum": 0, "maximum": 9},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": "^[ab]+$", "maxLength": 3},
    {"type": "string", "pattern": "b", "minLength": 3, "maxLength": 6},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"type": ["integer", "null"], "minimum": 7, "maximum": 9},
    {"enum": [1, "a", None, {"b": [1.5]}]},
    {"enum": ["ab", "abc"], "maxLength": 2},
    {"enum": [1, "a"], "type": "string"},
    {"const": {"a": [1, True]}},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    {"type": "array", "prefixItems": [{"type": "null"}, SHORT], "items": False, "minItems": 1},
    {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    {
        "type": "object",
        "properties": {"a": {"type": "null"}, "b": SHORT},
        "required": ["b"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "required": ["a"],
        "additionalProperties": {"type": "boolean"},
        "maxProperties": 3,
    },
    {"type": "object", "required": ["z"], "properties": {"z": {"const": 1}}, "maxProperties": 2},
    {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "null"}},
    {"type": "object", "patternProperties": {"^x[0-9]$": {"type": "null"}}, "additionalProperties": False},
    {"anyOf": [{"type": "null"}, {"type": "integer", "minimum": 8, "maximum": 9}]},
    {"oneOf": [{"type": "boolean"}, {"type": "string", "maxLength": 2}]},
    {"allOf": [{"type": "integer"}, {"minimum": 3}, {"maximum": 5}]},
    {
        "allOf": [
            {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]},
            {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]},
        ],
        "maxProperties": 2,
    },
    {"$ref": "#/$defs/a", "maximum": 4, "$defs": {"a": {"type": "integer", "minimum": 2}}},
    {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"v": {"type": "boolean"}, "next": {"$ref": "#/$defs/node"}},
                "required": ["v"],
                "additionalProperties": False,
            }
        },
    },
    {"title": "t", "description": "d", "default": 5, "examples": [1], "type": "null", "$comment": "c"},
]


def check(schema: Any, answers: int, first_seed: int = 0) -> None:
    compiled = compiling.from_json_schema(json.dumps(schema))
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
    for seed in range(first_seed, first_seed + answers):
        try:
            answer = sample(compiled, seed)
        except TooLong:
            continue
        validator.validate(json.loads(answer))
        bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", answer)
        assert not re.search(r"\s", bare), "white space outside strings"


@pytest.mark.parametrize("schema", SCHEMAS, ids=range(len(SCHEMAS)))
def test_every_answer_satisfies_the_schema(schema: Any) -> None:
    check(schema, 20)


numbers = st.fixed_dictionaries(
    {"type": st.sampled_from(["integer", "number"])},
    optional={
        "minimum": st.integers(-20, 20),
        "maximum": st.integers(-20, 20),
        "exclusiveMinimum": st.integers(-20, 20),
        "exclusiveMaximum": st.integers(-20, 20),
        "multipleOf": st.sampled_from([1, 2, 3, 0.5]),
        "enum": st.lists(st.one_of(st.integers(-20, 20), st.text(max_size=2)), min_size=1, max_size=3),
    },
)
strings = st.fixed_dictionaries(
    {"type": st.just("string")},
    optional={
        "minLength": st.integers(0, 4),
        "maxLength": st.integers(0, 6),
        "pattern": st.sampled_from(["^a", "b$", "^[a-c]*$", "[0-9]", "^(ab|c)+$"]),
        "enum": st.lists(st.text("abc0", max_size=4), min_size=1, max_size=3),
        "const": st.text("abc0", max_size=3),
    },
)
leaves = st.one_of(numbers, strings, st.sampled_from([{"type": "null"}, {"type": "boolean"}, True, False]))


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    arrays = st.fixed_dictionaries(
        {"type": st.just("array"), "maxItems": st.integers(0, 3)},
        optional={
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "minItems": st.integers(0, 3),
        },
    )
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "maxProperties": st.integers(0, 3)},
        optional={
            "properties": st.dictionaries(st.sampled_from(["a", "b", "cc"]), inner, max_size=3),
            "required": st.lists(st.sampled_from(["a", "b", "d"]), unique=True, max_size=2),
            "additionalProperties": inner,
            "minProperties": st.integers(0, 2),
        },
    )
    unions = st.fixed_dictionaries(
        {},
        optional={"anyOf": st.lists(inner, min_size=1, max_size=2), "allOf": st.lists(inner, min_size=1, max_size=2)},
    )
    return st.one_of(arrays, objects, unions)


@settings(max_examples=150)
@given(st.recursive(leaves, containers, max_leaves=4), st.integers(0, 1 << 20))
def test_any_combination_is_enforced_or_refused(schema: Any, seed: int) -> None:
    with suppress(BadConstraint, NotEnforceable):
        check(schema, 3, seed)


@pytest.mark.parametrize("seed", range(10))
def test_other_constraints_are_kept_to(seed: int) -> None:
    assert re.fullmatch("[a-c]{2,4}@x", sample(compiling.from_regex("[a-c]{2,4}@x"), seed))
    choices = ["yes", "no", 'a "quoted"\nline', "\u00fcber", "yes, but"]
    assert sample(compiling.from_choices(choices), seed) in choices
    assert re.fullmatch("a(ba)*", sample(compiling.from_gbnf('root ::= "a" | "a" "b" root'), seed))
    assert re.fullmatch("x[0-9]+y", sample(compiling.from_lark('start: "x" /[0-9]+/ "y"'), seed))
