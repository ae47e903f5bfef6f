"""Constraints over the whole sealed path, on the real model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from doubles.running_node import RunningNode

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "people": {"type": "integer", "minimum": 1, "maximum": 9999999},
        "rivers": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 2},
    },
    "required": ["city", "people", "rivers"],
    "additionalProperties": False,
}
QUESTION = "Tell me about the capital of Germany."


@pytest.mark.parametrize("temperature", ["0", "1.5"])
def test_an_answer_in_json_satisfies_its_schema(node: RunningNode, tmp_path: Path, temperature: str) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    answer = node.ask(
        QUESTION, "--json-schema", str(tmp_path / "schema.json"), "--temperature", temperature, "--seed", "3",
        "--max-tokens", "120", "--n", "2" if temperature != "0" else "1",
    )  # fmt: skip
    assert answer.exit_code == 0, answer.errors
    texts: dict[int, str] = {}
    for event in answer.events:
        if "delta" in event:
            delta = event["delta"]
            texts[delta["index"]] = texts.get(delta["index"], "") + delta["text"]
    for text in texts.values():
        jsonschema.validate(json.loads(text), SCHEMA)
    assert {event["finish"]["reason"] for event in answer.events if "finish" in event} == {"grammar"}


def test_a_choice_a_pattern_and_a_grammar_are_kept_to(node: RunningNode, tmp_path: Path) -> None:
    assert node.ask("Is water wet?", "--choice", "yes", "--choice", "no").text in {"yes", "no"}
    assert re.fullmatch("[0-9]{4}", node.ask("When did the wall fall?", "--regex", "[0-9]{4}").text)
    (tmp_path / "grammar").write_text('root ::= note ("-" note)? "."\nnote ::= "do" | "re"')
    assert re.fullmatch("(do|re)(-(do|re))?[.]", node.ask("Sing.", "--gbnf", str(tmp_path / "grammar")).text)


def test_what_cannot_be_enforced_is_refused_by_name(node: RunningNode, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(json.dumps({"properties": {"secret": {"not": {}}}}))
    refused = node.ask(QUESTION, "--json-schema", str(tmp_path / "schema.json"))
    assert refused.exit_code != 0
    assert refused.first("error")["where"] == "constraint.json_schema.properties[0].not"
    assert "secret" not in f"{refused.events}{refused.errors}"
    both = node.ask(QUESTION, "--regex", "a", "--choice", "b")
    assert "exclude each other" in f"{both.events}{both.errors}"
