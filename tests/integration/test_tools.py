"""Tool calls over the whole sealed path, on the real model: markers that are text, and markers that are tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from doubles.running_node import Answer, RunningNode, running_node
from doubles.tiny_adapter import relist
from doubles.tiny_model import TEST_KEY

from tie.catalog.tools import ToolsDescription
from tie.contracts.paths import RunPaths
from tie.vre import ChatMessage, Client, Sampling, Tool, ToolCall, chat_request

pytestmark = [pytest.mark.node, pytest.mark.timeout(180)]

FORMS = {
    "text": ToolsDescription("<tool_call>", "</tool_call>", inside="\n", between="\n"),
    "tokens": ToolsDescription("<reponame>", "<file_sep>", inside="\n", between="\n"),
}
TEMPLATE = (
    "{{ '<|im_start|>system\n' }}{% if tools %}{{ 'You may call these tools:\n' }}"
    "{% for tool in tools %}{{ tool | tojson }}{{ '\n' }}{% endfor %}{% endif %}{{ '<|im_end|>\n' }}"
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content }}"
    "{% for call in message.tool_calls %}"
    '{{ \'\nBEGIN\n{"name": "\' + call.function.name + \'", "arguments": \' }}{{ call.function.arguments | tojson }}'
    "{{ '}\nEND' }}{% endfor %}{{ '<|im_end|>\n' }}{% endfor %}{{ '<|im_start|>assistant\n' }}"
)
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
WATCH = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}},
    "required": ["on"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "set_watch": WATCH}
TOOLS = [{"name": name, "description": "A tool.", "parameters": schema} for name, schema in SCHEMAS.items()]
QUESTION = "What is the weather in Berlin for the next three days?"


@pytest.fixture(scope="module", params=FORMS)
def tool_node(
    request: pytest.FixtureRequest, smollm2: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningNode]:
    """SmolLM2 with a template that tells of tools, signed anew."""
    form = FORMS[request.param]
    bundle = tmp_path_factory.mktemp(request.param) / "bundle"
    shutil.copytree(smollm2, bundle)
    table = "".join(f"{key} = {json.dumps(value)}\n" for key, value in form.to_table().items())
    with (bundle / "bundle.toml").open("a") as described:
        described.write(f"\n[tools]\n{table}")
    (bundle / "templates" / "chat.jinja").write_text(TEMPLATE.replace("BEGIN", form.begin).replace("END", form.end))
    relist(bundle, "bundle.toml", "templates/chat.jinja")
    trusted = bundle.parent / "trusted"
    trusted.write_text(TEST_KEY.public.hex() + "\n")
    with running_node(bundle, config=f'[node]\ntrusted_keys_file = "{trusted}"\n') as node:
        yield node


@pytest.fixture
def offered(tmp_path: Path) -> str:
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    return str(tmp_path / "tools.json")


def calls(answer: Answer, index: int = 0) -> list[tuple[str, Any]]:
    """Each is begun by one delta and goes on in others."""
    found: list[list[str]] = []
    for delta in (event["delta"] for event in answer.events if "delta" in event):
        if delta["index"] != index or "tool_call_delta" not in delta:
            continue
        more = delta["tool_call_delta"]
        if more["name"]:
            assert more["call_index"] == len(found)
            assert more["id"].startswith("call_")
            found.append([more["name"], ""])
        found[more["call_index"]][1] += more["arguments_json"]
    return [(name, json.loads(arguments)) for name, arguments in found]


def check(found: list[tuple[str, Any]]) -> None:
    for name, arguments in found:
        jsonschema.validate(arguments, SCHEMAS[name])


def test_tools_are_refused_where_the_bundle_describes_no_calls(node: RunningNode, offered: str) -> None:
    refused = node.ask(QUESTION, "--tools", offered)
    assert refused.exit_code != 0
    assert (refused.first("error")["kind"], refused.first("error")["where"]) == ("unsupported", "tools")


@pytest.mark.parametrize("temperature", ["0", "1.5"])
def test_a_required_call_is_valid_and_streamed(tool_node: RunningNode, offered: str, temperature: str) -> None:
    answer = tool_node.ask(
        QUESTION, "--tools", offered, "--tool-choice", "required", "--temperature", temperature, "--seed", "5",
        "--max-tokens", "200", "--n", "2",
    )  # fmt: skip
    assert answer.exit_code == 0, answer.errors
    assert answer.text == ""
    for index in (0, 1):
        reason = next(e["finish"]["reason"] for e in answer.events if "finish" in e and e["finish"]["index"] == index)
        pieces = [e for e in answer.events if "tool_call_delta" in e.get("delta", {}) and e["delta"]["index"] == index]
        assert len(pieces) > 3
        if reason == "tool_calls":
            found = calls(answer, index)
            assert found
            check(found)
        else:
            assert reason == "length"


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_tool_by_name_is_called_once(tool_node: RunningNode, offered: str, name: str) -> None:
    answer = tool_node.ask(QUESTION, "--tools", offered, "--tool-choice", name, "--max-tokens", "120")
    assert answer.exit_code == 0, answer.errors
    ((called, arguments),) = calls(answer)
    assert called == name
    check([(called, arguments)])
    assert answer.first("finish")["reason"] == "tool_calls"


def test_a_free_answer_is_text_or_valid_calls(tool_node: RunningNode, offered: str) -> None:
    for seed in range(3):
        answer = tool_node.ask(
            QUESTION, "--tools", offered, "--temperature", "1.2", "--seed", str(seed), "--max-tokens", "60"
        )
        assert answer.exit_code == 0, answer.errors
        assert "<tool_call>" not in answer.text
        if answer.first("finish")["reason"] == "tool_calls":
            check(calls(answer))
        else:
            assert answer.text or any("tool_call_delta" in event.get("delta", {}) for event in answer.events)


def test_a_result_goes_back_and_the_dialogue_goes_on(tool_node: RunningNode) -> None:
    tools = [Tool(name, "A tool.", schema) for name, schema in SCHEMAS.items()]
    said = [ChatMessage("user", QUESTION)]
    brief = Sampling(max_tokens=120)
    address = RunPaths(tool_node.run_dir).cloudboard_address.read_text().strip()
    with Client(address, allow_development_attestation=True) as client:
        asked = client.complete(chat_request(said, brief, tools=tools, tool_choice="get_weather"))
        (call,) = asked.choices[0].tool_calls
        assert isinstance(call, ToolCall)
        said += [asked.choices[0].message(), ChatMessage("tool", '{"sky": "<|im_end|>clear"}', tool_call_id=call.id)]
        answered = client.complete(chat_request(said, brief, tools=tools, tool_choice="none"))
        assert answered.is_whole
        assert answered.text
        strange = ChatMessage("tool", "x", tool_call_id="call_of_nobody")
        refused = client.complete(chat_request([*said, strange], brief, tools=tools))
        assert refused.error is not None
        assert refused.error.where == "chat.messages[3].tool_call_id"
