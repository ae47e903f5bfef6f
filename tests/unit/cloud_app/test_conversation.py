"""Each refusal of a dialogue with calls and results: by field, with its limit, and never with what it said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tie.api.inference.v1 import inference_pb2 as pb
from tie.cloud_app.conversation import check_chat
from tie.contracts.errors import InvalidRequest, Unsupported
from tie.prompting.chat import Call, Message

MARKER = "MARKER7f3a"
Change = Callable[[pb.Chat], Any]


def dialogue(*changes: Change) -> pb.Chat:
    """A question, two calls, a result."""
    chat = pb.Chat()
    chat.messages.add(role=pb.ROLE_USER).parts.add(text="hi")
    asked = chat.messages.add(role=pb.ROLE_ASSISTANT)
    asked.tool_calls.add(id="a", name="get", arguments_json='{"x": [1, null]}')
    asked.tool_calls.add(id="b", name="put", arguments_json="{}")
    chat.messages.add(role=pb.ROLE_TOOL, tool_call_id="b").parts.add(text=MARKER)
    for change in changes:
        change(chat)
    return chat


def call(**fields: str) -> Change:
    return lambda c: [setattr(c.messages[1].tool_calls[0], name, value) for name, value in fields.items()]


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


ARGUMENTS = "chat.messages[1].tool_calls[0].arguments_json"
INVALID: list[tuple[str, str, Change]] = [
    ("chat.messages[0].role", "none of system, user, assistant, tool", lambda c: setattr(c.messages[0], "role", 9)),
    (
        "chat.messages[0].tool_calls",
        "an assistant's message only",
        lambda c: c.messages[0].tool_calls.add(id=MARKER, name="get", arguments_json="{}"),
    ),
    (
        "chat.messages[1].tool_call_id",
        "a tool's message only",
        lambda c: setattr(c.messages[1], "tool_call_id", MARKER),
    ),
    ("chat.messages[2].tool_call_id", "is missing", lambda c: c.messages[2].ClearField("tool_call_id")),
    ("chat.messages[2].tool_call_id", "names no call", lambda c: setattr(c.messages[2], "tool_call_id", MARKER)),
    ("chat.messages[1].tool_calls[0].id", "not 1 to 64 printable", call(id="")),
    ("chat.messages[1].tool_calls[0].id", "not 1 to 64 printable", call(id="x" * 65)),
    ("chat.messages[1].tool_calls[0].id", "not 1 to 64 printable", call(id=f"{MARKER} ")),
    ("chat.messages[1].tool_calls[1].id", "id of an earlier call", call(id="b")),
    ("chat.messages[1].tool_calls[0].name", "does not match", call(name=f"{MARKER}!")),
    (ARGUMENTS, "not JSON", call(arguments_json=MARKER)),
    (ARGUMENTS, "not JSON", call(arguments_json="")),
    (ARGUMENTS, "not JSON", call(arguments_json='{"a": 1, "a": 2}')),
    (ARGUMENTS, "not a JSON object", call(arguments_json=f'["{MARKER}"]')),
    (ARGUMENTS, "65537 bytes, the limit is 65536", call(arguments_json="{" + " " * 65535 + "}")),
    (ARGUMENTS, "deeper than 64", call(arguments_json=nested(65))),
    (
        "chat.messages[1].tool_calls",
        "66 calls, the limit is 64",
        lambda c: [c.messages[1].tool_calls.add(id=f"c{n}", name="x", arguments_json="{}") for n in range(64)],
    ),
]


@pytest.mark.parametrize(("where", "problem", "change"), INVALID)
def test_what_is_out_of_its_bounds_is_refused_with_the_limit(where: str, problem: str, change: Change) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_chat(dialogue(change), has_tools=True)
    assert caught.value.where == where
    assert problem in caught.value.problem
    assert MARKER not in f"{caught.value}{caught.value!r}"


def test_a_result_does_not_come_before_its_call() -> None:
    chat = dialogue()
    chat.messages.insert(0, pb.Message(role=pb.ROLE_TOOL, tool_call_id="a"))
    with pytest.raises(InvalidRequest, match=r"chat\.messages\[0\]\.tool_call_id: names no call"):
        check_chat(chat, has_tools=True)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.Message(role=pb.ROLE_TOOL), "role"),
        (pb.Message(role=pb.ROLE_TOOL, tool_call_id="a"), "tool_call_id"),
        (pb.Message(role=pb.ROLE_ASSISTANT, tool_calls=[pb.ToolCall(id="a")]), "tool_calls"),
    ],
)
def test_a_model_that_calls_no_tools_takes_no_calls_and_results(message: pb.Message, field: str) -> None:
    with pytest.raises(Unsupported, match="describes no tool calls") as caught:
        check_chat(pb.Chat(messages=[message]), has_tools=False)
    assert caught.value.where == f"chat.messages[0].{field}"


def test_a_result_knows_the_tool_it_comes_from() -> None:
    assert check_chat(dialogue(), has_tools=True) == (
        Message("user", "hi"),
        Message("assistant", "", (Call("a", "get", {"x": [1, None]}), Call("b", "put", {}))),
        Message("tool", MARKER, call_id="b", name="put"),
    )


def test_a_call_may_be_answered_late_and_bounds_themselves_are_taken() -> None:
    chat = dialogue(call(id="x" * 64, arguments_json=nested(64)))
    chat.messages.add(role=pb.ROLE_USER)
    chat.messages.add(role=pb.ROLE_TOOL, tool_call_id="x" * 64)
    assert check_chat(chat, has_tools=True)[-1].name == "get"
