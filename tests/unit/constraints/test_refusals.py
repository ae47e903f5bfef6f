"""What is refused, by which name and place; no text quotes the constraint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tie.constraints import budget, compiling, keywords
from tie.constraints.errors import BadConstraint, NotEnforceable

MARKER = "canary-7f3a"


def refusal(schema: Any) -> BadConstraint | NotEnforceable:
    with pytest.raises((BadConstraint, NotEnforceable)) as caught:
        compiling.from_json_schema(schema if isinstance(schema, str) else json.dumps(schema))
    assert MARKER not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("keyword", sorted(keywords.NOT_ENFORCED))
def test_a_keyword_that_is_not_enforced_is_named_with_its_place(keyword: str) -> None:
    error = refusal({"type": "object", "properties": {"a": {}, MARKER: {"items": {keyword: {MARKER: 1}}}}})
    assert isinstance(error, NotEnforceable)
    assert error.where == f"constraint.json_schema.properties[1].items.{keyword}"


@pytest.mark.parametrize("keyword", ["x-guidance", "maxlength", "nullable", MARKER])
def test_a_member_that_is_no_keyword_is_refused(keyword: str) -> None:
    error = refusal({"anyOf": [{"type": "null"}, {keyword: 1}]})
    assert error.where == "constraint.json_schema.anyOf[1]"
    assert "no keyword" in error.problem


FAULTS: list[tuple[Any, str, str]] = [
    ("{", "", "not JSON"),
    ('{"type": "null", "type": "string"}', "", "not JSON"),
    ('{"minimum": NaN}', "", "not JSON"),
    ("[]", "", "no schema"),
    ({"properties": []}, ".properties", "object of schemas"),
    ({"anyOf": []}, ".anyOf", "list of schemas"),
    ({"items": [{}]}, ".items", "prefixItems"),
    ({"enum": []}, ".enum", "list of values"),
    ({"enum": list(range(budget.MAX_VALUES + 1))}, ".enum", "1001 values"),
    ({"format": MARKER}, ".format", "none of date"),
    ({"$schema": "http://json-schema.org/draft-07/schema#"}, ".$schema", "another dialect"),
    ({"$ref": f"http://{MARKER}/x"}, ".$ref", "own $defs"),
    ({"$ref": "#/properties/a", "properties": {"a": {}}}, ".$ref", "own $defs"),
    ({"$ref": "#/$defs/a"}, ".$ref", "points at nothing"),
    ({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, ".$ref", "to itself"),
    ({"patternProperties": {"^a": {}, "^b": {}}}, ".patternProperties", "more than one"),
    ({"patternProperties": {"^a": {}}, "properties": {"ab": {}}}, ".patternProperties", "overlap"),
    ({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}, ".properties[0].oneOf", "both"),
    (
        {"items": {"type": "integer", "minimum": 5, "maximum": 4}, "minItems": 1, "type": "array"},
        ".items.minimum",
        "no value",
    ),
    (
        {"items": {"properties": {"a": {}}, "additionalProperties": {}, "maxProperties": 2}},
        ".items.maxProperties",
        "not all required",
    ),
    (False, "", "no value"),
    ({"type": MARKER}, ".type", "cannot be compiled"),
    ({"minimum": MARKER}, ".minimum", "cannot be compiled"),
    ({"pattern": f"({MARKER}"}, ".pattern", "cannot be compiled"),
]


@pytest.mark.parametrize(("schema", "where", "problem"), FAULTS)
def test_what_is_wrong_is_said_with_its_place(schema: Any, where: str, problem: str) -> None:
    error = refusal(schema)
    assert error.where == f"constraint.json_schema{where}"
    assert problem in error.problem


def test_size_depth_and_number_of_schemas_are_bounded() -> None:
    assert "limit is 65536" in refusal({"const": "a" * budget.MAX_SCHEMA_BYTES}).problem
    deep: Any = {}
    for _ in range(budget.MAX_SCHEMA_DEPTH + 1):
        deep = {"items": deep}
    assert "deeper than 64" in refusal(deep).problem
    assert "more than 2000" in refusal({"anyOf": [True] * budget.MAX_SCHEMA_NODES}).problem


@pytest.mark.parametrize(
    ("compile_it", "text", "problem"),
    [
        (compiling.from_regex, "", "1 to 4096"),
        (compiling.from_regex, "a" * 4097, "1 to 4096"),
        (compiling.from_regex, f"({MARKER}", "cannot be compiled"),
        (compiling.from_choices, [], "1 to 1000"),
        (compiling.from_choices, ["a"] * 1001, "1 to 1000"),
        (compiling.from_choices, ["a", ""], "none or more"),
        (compiling.from_gbnf, f"root ::= {MARKER}( ", "GBNF"),
        (compiling.from_gbnf, "", "1 to 65536"),
        (compiling.from_lark, f"start: {MARKER}", "cannot be compiled"),
        (compiling.from_lark, "start: <|im_end|>", "special token"),
        (compiling.from_lark, 'start: "a" <[12]>', "special token"),
        (compiling.from_lark, '%llguidance {"no_forcing": true}\nstart: "a"', "directive"),
        (compiling.from_lark, 'start: %json {"x-guidance": {}}', "directive"),
        (compiling.from_lark, "start: @other", "another grammar"),
    ],
)
def test_other_constraints_are_refused_with_their_limit(compile_it: Any, text: Any, problem: str) -> None:
    with pytest.raises((BadConstraint, NotEnforceable), match=problem) as caught:
        compile_it(text)
    assert MARKER not in str(caught.value)


def test_signs_within_quotes_are_text() -> None:
    compiling.from_lark('start: "<b>" /[%@<]+/ "\\"<" // a <comment>')
