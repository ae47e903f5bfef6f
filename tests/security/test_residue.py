"""Markers in every field that a request has; afterwards they are looked for wherever a process could have left them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from doubles.running_node import BIN, RunningNode

from tie.api.inference.v1 import inference_pb2 as pb
from tie.clients import cloudboard
from tie.vre import Client, NodeError

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]
MARK = "zqxmarker7c1"


def requests() -> list[tuple[str, ...]]:
    """Good, refused and cut-short requests; every string that a user chooses holds the marker."""
    return [
        (f"Repeat the word {MARK} twice.", "--system", f"You like {MARK}.", "--max-tokens", "12"),
        (f"{MARK}", "--stop", f"{MARK}stop", "--max-tokens", "4"),
        (f"{MARK}", "--model", f"{MARK}"),
        (f"{MARK}", "--temperature", "-3"),
        (f"{MARK} " * 6000,),
        (f"{MARK}<|im_end|>", "--raw", "--max-tokens", "3"),
    ]


def every_field() -> list[pb.InferenceRequest]:
    """The marker in each string and bytes field of the contract, those that are refused by name included."""

    def chat(**fields: Any) -> pb.InferenceRequest:
        request = pb.InferenceRequest(**fields)
        request.chat.messages.add(role=pb.ROLE_USER).parts.add(text=MARK)
        request.sampling.max_tokens = 2
        return request

    key = (MARK * 3).encode()[:32]
    image = pb.InferenceRequest(chat=pb.Chat(messages=[pb.Message(role=pb.ROLE_USER, parts=[pb.Part(image=key)])]))
    called = pb.InferenceRequest()
    called.chat.messages.add(
        role=pb.ROLE_ASSISTANT, tool_call_id=MARK, tool_calls=[pb.ToolCall(id=MARK, name=MARK, arguments_json=MARK)]
    )
    turn = pb.Turn(turn_id=key[:16], turn_key=key, earlier=[pb.EarlierTurn(turn_id=key[:16], turn_key=key)])
    tool = pb.Tool(name=MARK, description=MARK, parameters_json_schema=MARK)
    constraints = [
        pb.Constraint(json_schema=MARK),
        pb.Constraint(regex=MARK),
        pb.Constraint(choices=pb.ChoiceList(choices=[MARK])),
        pb.Constraint(gbnf=MARK),
        pb.Constraint(lark=MARK),
        pb.Constraint(fragment=pb.GrammarFragment(grammar_id=MARK, rules=MARK)),
    ]
    return [
        chat(request_id=MARK),
        chat(adapter=MARK),
        chat(tools=[tool]),
        chat(tool_choice=pb.ToolChoice(name=MARK)),
        chat(turn=turn),
        chat(template_source=MARK),
        chat(padding=MARK.encode()),
        pb.InferenceRequest(template_prompt=pb.TemplatePrompt(template_id=MARK, values={MARK: MARK})),
        pb.InferenceRequest(template_prompt=pb.TemplatePrompt(template_id="chat", values={MARK: MARK})),
        image,
        called,
        *(chat(constraint=constraint) for constraint in constraints),
    ]


def ask_with_every_field(node: RunningNode) -> None:
    with Client(cloudboard.read_address(node.run_dir), allow_development_attestation=True) as client:
        for request in every_field():
            events = list(client.ask(request, trace_id=MARK))
            assert events
            faults = [event for event in events if isinstance(event, NodeError)]
            assert not [fault for fault in faults if MARK in fault.message or MARK in fault.where]


def files_of(node: RunningNode) -> Iterator[tuple[str, bytes]]:
    for path in node.run_dir.rglob("*"):
        if path.is_file():
            yield str(path), path.read_bytes()
    for path in Path("/dev/shm").iterdir():
        if path.is_file() and os.access(path, os.R_OK) and "triton" in path.name:
            continue  # Triton's region holds requests in flight and is inside the boundary of the runtime
        if path.is_file() and os.access(path, os.R_OK):
            yield str(path), path.read_bytes()


def process_faces(node: RunningNode) -> Iterator[tuple[str, bytes]]:
    family = psutil.Process(node.status()["supervisor_pid"]) if "supervisor_pid" in node.status() else None
    pids = set(node.processes()) | ({child.pid for child in family.children(recursive=True)} if family else set())
    for pid in pids:
        for face in ("cmdline", "environ", "comm"):
            try:
                yield f"/proc/{pid}/{face}", Path(f"/proc/{pid}/{face}").read_bytes()
            except OSError:
                continue


def test_no_marker_is_left_anywhere(own_node: RunningNode) -> None:
    answers = [own_node.ask(*request, timeout_s=90) for request in requests()]
    assert answers[0].exit_code == 0, answers[0]
    assert [answer.exit_code == 0 for answer in answers[2:5]] == [False, False, False]
    for answer in answers:
        error = answer.first("error") or {}
        assert MARK not in json.dumps(error), "an error repeats what the request held"
        assert MARK not in answer.errors
    ask_with_every_field(own_node)
    status = subprocess.run(
        [str(BIN / "tie"), "status", "--run-dir", str(own_node.run_dir)], capture_output=True, timeout=30
    )
    seen = [*files_of(own_node), *process_faces(own_node), ("tie status", status.stdout + status.stderr)]
    assert len(seen) > 10
    assert not [place for place, content in seen if MARK.encode() in content]
    assert '"request' in own_node.logs() or "request." in own_node.logs(), "the requests were logged at all"
