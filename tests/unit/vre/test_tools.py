"""Tools and calls on the device's side: what is refused before it is sent, and what comes back."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from tie.api.inference.v1 import inference_pb2 as pb
from tie.contracts.errors import InvalidRequest
from tie.vre.collected import collect
from tie.vre.errors import BadAnswer
from tie.vre.events import Delta, Event, Finish, ToolCallDelta
from tie.vre.printing import TextPrinter
from tie.vre.request import ChatMessage, chat_request
from tie.vre.tools import Tool, ToolCall, read_tools

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
PLAIN = {"name": "get", "description": "Gets.", "parameters": SCHEMA}


def call(index: int, more: str = "", *, name: str = "", choice: int = 0) -> Delta:
    return Delta(choice, tool_call=ToolCallDelta(index, f"call_{index}" if name else "", name, more))


EVENTS: list[Event] = [
    Delta(0, text="I look."),
    call(0, name="get"),
    call(0, '{"city": '),
    call(0, '"Bonn"}'),
    call(1, name="put"),
    call(1, "{}"),
    Delta(0, text="Done."),
    Finish(0, "tool_calls"),
]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("SECRET", "tools"),
        ('{"name": "SECRET"}', "tools"),
        ('["SECRET"]', "tools[0]"),
        ('[{"description": "SECRET"}]', "tools[0]"),
        ('[{"name": 7}]', "tools[0]"),
        ('[{"name": "a"}, {"name": "b", "SECRET": 1}]', "tools[1]"),
        ('[{"type": "function", "function": "SECRET"}]', "tools[0]"),
        ('[{"type": "SECRET", "name": "a"}]', "tools[0]"),
        ('[{"name": "a", "parameters": "SECRET"}]', "tools[0]"),
        ('[{"name": "a", "description": ["SECRET"]}]', "tools[0]"),
        ("[" * 100_000, "tools"),
    ],
)
def test_a_file_that_is_no_list_of_tools_is_refused_without_being_repeated(text: str, where: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read_tools(text, "tools")
    assert raised.value.where == where
    assert "SECRET" not in str(raised.value)


@pytest.mark.parametrize(
    ("tools", "calls", "where"),
    [
        ([Tool("a", parameters={"x": object()})], (), "tools[0].parameters_json_schema"),
        ([Tool("a"), Tool("b", "\udcff")], (), "tools[1]"),
        ([], (ToolCall("i", "n", "\udcff"),), "chat.messages[0].tool_calls[0]"),
    ],
)
def test_what_does_not_fit_the_message_is_refused_by_field(
    tools: list[Tool], calls: tuple[ToolCall, ...], where: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        chat_request([ChatMessage("assistant", "", calls)], tools=tools)
    assert raised.value.where == where


def test_a_call_that_goes_on_before_it_begins_is_no_answer() -> None:
    with pytest.raises(BadAnswer, match="tool call 1 before it began"):
        collect([call(1, name="get")])


def test_both_forms_of_a_tool_are_read() -> None:
    function = {"type": "function", "function": {**PLAIN, "strict": True}}
    read = read_tools(json.dumps([PLAIN, function, {"name": "put", "description": None, "parameters": {}}]), "tools")
    assert read == [Tool("get", "Gets.", SCHEMA), Tool("get", "Gets.", SCHEMA), Tool("put", "", {})]
    assert read_tools("[]", "tools") == []


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", pb.ToolChoice(auto=True)),
        ("none", pb.ToolChoice(none=True)),
        ("required", pb.ToolChoice(required=True)),
        ("get", pb.ToolChoice(name="get")),
    ],
)
def test_a_choice_is_a_word_or_a_name(choice: str, sent: pb.ToolChoice) -> None:
    request = chat_request(
        [ChatMessage("user", "x")], tools=[Tool("get", "Gets.", SCHEMA), Tool("put")], tool_choice=choice
    )
    assert request.tool_choice == sent
    assert list(request.tools) == [
        pb.Tool(name="get", description="Gets.", parameters_json_schema=json.dumps(SCHEMA)),
        pb.Tool(name="put"),
    ]
    assert not chat_request([ChatMessage("user", "x")], tools=[Tool("put")]).HasField("tool_choice")


def test_calls_are_collected_and_go_back_with_their_results() -> None:
    (choice,) = collect(EVENTS).choices
    assert choice.finish_reason == "tool_calls"
    assert choice.tool_calls == [ToolCall("call_0", "get", '{"city": "Bonn"}'), ToolCall("call_1", "put", "{}")]
    answered = [ChatMessage("user", "x"), choice.message(), ChatMessage("tool", "sunny", tool_call_id="call_0")]
    request = chat_request(answered)
    assert list(request.chat.messages[1].tool_calls) == [
        pb.ToolCall(id="call_0", name="get", arguments_json='{"city": "Bonn"}'),
        pb.ToolCall(id="call_1", name="put", arguments_json="{}"),
    ]
    assert request.chat.messages[1].parts[0].text == "I look.Done."
    assert (request.chat.messages[2].role, request.chat.messages[2].tool_call_id) == (pb.ROLE_TOOL, "call_0")


def printed(events: list[Any], choices: int) -> str:
    out = io.StringIO()
    printer = TextPrinter(out, io.StringIO(), choices)
    for event in events:
        printer.event(event)
    printer.close()
    return out.getvalue()


def test_each_call_is_shown_on_a_line_of_its_own() -> None:
    assert printed(EVENTS, 1) == ('I look.\n[tool call] get {"city": "Bonn"}\n[tool call] put {}\nDone.\n')
    assert printed(EVENTS[1:3], 1) == '[tool call] get {"city": \n'


def test_several_choices_show_their_calls_apart() -> None:
    events = [call(0, name="get", choice=1), Delta(0, text="none"), call(0, "{}", choice=1)]
    assert printed(events, 2) == "[0] none\n[1] \n[1] [tool call] get {}\n"


def test_no_representation_shows_a_tool_or_a_call() -> None:
    assert "SECRET" not in repr([Tool("SECRET", "SECRET"), ToolCall("SECRET", "SECRET", "SECRET")])
