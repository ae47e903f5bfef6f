"""What an import takes for a model's way to call tools, and what not."""

from __future__ import annotations

import pytest

from tie.bundling.errors import ImportRefused
from tie.bundling.tool_calls import tools_of
from tie.catalog.tools import ToolsDescription

HERMES = (
    '{{ \'<tool_call>\\n{"name": "\' + name + \'", "arguments": \' }}{{ arguments | tojson }}{{ "}\\n</tool_call>" }}'
)
ESCAPED = r'{{- "<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>" }}'
FLAT = '<tool_call>{"name": "a", "arguments": {}}</tool_call>'


@pytest.mark.parametrize(
    "template",
    [
        None,
        "",
        "{{ messages[0].content }}",
        '<tool_call>{"name": "a", "arguments": {}}',
        "<tool_call>\n<function=a>\n<parameter=b>\n1\n</parameter>\n</function>\n</tool_call>",
        '<tool_call>\n<function=a> {"name": 1, "arguments": 2}</tool_call>',
        "<tool_call>{{ name }}\n<arg_key>a</arg_key></tool_call>",
        '<tool_call>{"name": "a", "parameters": {}}</tool_call>',
    ],
)
def test_what_is_not_known_by_sight_is_not_guessed(template: str | None) -> None:
    assert tools_of(template, None) is None


@pytest.mark.parametrize(("template", "space"), [(HERMES, "\n"), (ESCAPED, "\n"), (FLAT, "")])
def test_json_between_the_usual_markers_is_known(template: str, space: str) -> None:
    assert tools_of(template, None) == ToolsDescription("<tool_call>", "</tool_call>", inside=space, between=space)


def test_markers_that_were_asked_for_win() -> None:
    assert tools_of(FLAT, ("[CALL]", "[/CALL]")) == ToolsDescription("[CALL]", "[/CALL]")
    assert tools_of(HERMES, ("<tool_call>", "<end>")) == ToolsDescription("<tool_call>", "<end>", "\n", "\n")


@pytest.mark.parametrize("markers", [("", "x"), ("x", ""), (" x", "y"), ("x", "y\n"), ("x" * 65, "y")])
def test_markers_that_no_bundle_could_hold_are_refused(markers: tuple[str, str]) -> None:
    with pytest.raises(ImportRefused, match="1 to 64 printable characters"):
        tools_of(FLAT, markers)


def test_markers_without_a_template_are_refused() -> None:
    with pytest.raises(ImportRefused, match="no chat template"):
        tools_of(None, ("a", "b"))
