"""`tie-vre` as a process of its own: exit codes, what goes where, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from doubles import fake_node
from doubles.fake_node import FakeNode, Outcome, delta, finish, usage

from tie.api.inference.v1 import inference_pb2 as ipb
from tie.contracts.paths import RunPaths
from tie.vre.exits import MEANINGS, Exit

COMMAND = [sys.executable, "-m", "tie.vre.cli"]


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as serving:
        yield serving


@pytest.fixture
def run_dir(node: FakeNode, tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    RunPaths(tmp_path).cloudboard_address.write_text(node.address)
    return tmp_path


def vre(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[str]:
    names = {**os.environ, "TIE_RUN_DIR": "/absent", "COLUMNS": "120", **environment}
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, input=stdin.decode("latin-1"), encoding="latin-1",
        env=names, timeout=25,
    )  # fmt: skip


def script(*steps: Any) -> fake_node.Script:
    return lambda _: iter(steps)


def lines(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "arguments",
    [
        ("ask",),
        ("ask", "hi", "--no-such-option"),
        ("ask", "hi", "--max-tokens", "many"),
        ("ask", "hi", "--max-tokens", "9223372036854775808"),
        ("ask", "hi", "--seed", "-1"),
        ("ask", "hi", "--logit-bias", "seven"),
        ("ask", "hi", "--raw", "--system", "x"),
        ("ask", "hi", "--raw", "--tool-choice", "auto"),
        ("ask", "hi", "--tools", "/absent"),
        ("ask", "--file", "/absent"),
        ("ask", "hi", "--timeout", "0"),
        ("--node", "a:1", "--run-dir", "/tmp", "ask", "hi"),
        ("frobnicate",),
    ],
)
def test_wrong_usage_is_2_and_sends_nothing(node: FakeNode, run_dir: Path, arguments: tuple[str, ...]) -> None:
    done = vre(*(arguments if "--node" in arguments else ("--run-dir", run_dir, *arguments)))
    assert done.returncode == Exit.USAGE, done.stderr
    assert done.stderr
    assert node.seen.requests == []


def test_a_file_that_is_not_utf8_is_refused(run_dir: Path) -> None:
    done = vre("--run-dir", run_dir, "ask", "--json", "--file", "-", stdin=b"ab\xffsecret")
    assert done.returncode == Exit.USAGE
    assert lines(done)[0]["error"]["where"] == "prompt"
    assert "secret" not in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [("--run-dir", "/absent"), ("--node", "127.0.0.1:1")])
def test_no_node_is_3(arguments: tuple[str, ...]) -> None:
    done = vre(*arguments, "ask", "hi", "--json")
    assert done.returncode == Exit.UNREACHABLE
    assert lines(done)[0]["error"]["kind"] == "unavailable"


def test_a_development_attestation_needs_leave_for_a_node_given_by_address(node: FakeNode) -> None:
    refused = vre("--node", node.address, "ask", "hi")
    assert refused.returncode == Exit.ATTESTATION_REFUSED
    assert "--allow-development-attestation" in refused.stderr
    assert node.seen.requests == []
    allowed = vre("--node", node.address, "ask", "hi", "--allow-development-attestation")
    assert (allowed.returncode, allowed.stdout) == (Exit.OK, "The capital is Paris.\n")
    by_environment = vre("--node", node.address, "ask", "hi", TIE_VRE_ALLOW_DEVELOPMENT_ATTESTATION="1")
    assert by_environment.returncode == Exit.OK


def test_a_run_directory_that_others_may_write_gives_no_leave(run_dir: Path) -> None:
    run_dir.chmod(0o770)
    assert vre("--run-dir", run_dir, "ask", "hi").returncode == Exit.ATTESTATION_REFUSED


@pytest.mark.parametrize(
    ("steps", "code", "last"),
    [
        ((delta("The"), fake_node.CUT), Exit.TRUNCATED, "truncated"),
        ((delta("The"), Outcome.INTERNAL_ERROR), Exit.NODE_ERROR, "error"),
        ((fake_node.ABORT_BUSY,), Exit.NODE_ERROR, "error"),
        ((fake_node.TAMPER, delta("x")), Exit.NODE_ERROR, "error"),
        ((fake_node.Fault("abort", grpc.StatusCode.UNAVAILABLE),), Exit.UNREACHABLE, "error"),
    ],
)
def test_each_end_has_its_code_and_its_last_line(
    node: FakeNode, run_dir: Path, steps: tuple[Any, ...], code: Exit, last: str
) -> None:
    node.script = script(*steps)
    done = vre("--run-dir", run_dir, "ask", "hi", "--json")
    assert done.returncode == code, done.stderr
    assert last in lines(done)[-1]
    plain = vre("--run-dir", run_dir, "ask", "hi")
    assert plain.returncode == code
    assert plain.stderr.strip().splitlines()[-1].startswith("tie-vre: ")


def test_a_truncated_answer_is_shown_as_such(node: FakeNode, run_dir: Path) -> None:
    node.script = script(delta("The capi"), fake_node.CUT)
    done = vre("--run-dir", run_dir, "ask", "hi")
    assert done.stdout == "The capi\n"
    assert "[truncated]" in done.stderr


def test_json_lines_are_the_contracts_messages(node: FakeNode, run_dir: Path) -> None:
    entry = ipb.TokenLogprobs(token_id=5, logprob=-0.5, alternatives=[ipb.Alternative(token_id=0, logprob=0.0)])
    with_logprobs = ipb.InferenceResponse(delta=ipb.Delta(index=0, text="é", logprobs=[entry]))
    progress = ipb.InferenceResponse(progress=ipb.Progress())
    node.script = script(progress, with_logprobs, finish(ipb.FINISH_REASON_LENGTH), usage(0, 1), Outcome.OK)
    done = vre("ask", "hi", "--json", "--run-dir", run_dir, "--logprobs", "1")
    logprobs = [{"token_id": 5, "logprob": -0.5, "alternatives": [{"token_id": 0, "logprob": 0.0}]}]
    assert [json.loads(line) for line in done.stdout.encode("latin-1").decode().splitlines()] == [
        {"progress": {}},
        {"delta": {"index": 0, "text": "é", "logprobs": logprobs}},
        {"finish": {"index": 0, "reason": "length"}},
        {"usage": {"request_id": "", "prompt": 0, "cached_prefix": 0, "restored": 0, "completion": 1}},
    ]


def test_every_option_reaches_its_field(node: FakeNode, run_dir: Path) -> None:
    done = vre(
        "ask", "hi", "--run-dir", run_dir, "--system", "be brief", "--temperature", "0.5", "--top-p", "0.25",
        "--top-k", "-3", "--min-p", "0.125", "--seed", "18446744073709551615", "--max-tokens", "-1",
        "--min-tokens", "2", "--stop", "a", "--stop", "b", "--stop-token-id", "7", "--repetition-penalty", "1.5",
        "--presence-penalty", "0.5", "--frequency-penalty", "-0.5", "--logit-bias", "3=-1.5", "--n", "2",
        "--logprobs", "0", "--ignore-eos", "--model", "m", "--adapter", "formal",
    )  # fmt: skip
    assert done.returncode == Exit.OK, done.stderr
    (request,) = node.seen.requests
    request.ClearField("padding")
    expected = ipb.InferenceRequest(
        model="m",
        adapter="formal",
        chat=ipb.Chat(
            messages=[
                ipb.Message(role=ipb.ROLE_SYSTEM, parts=[ipb.Part(text="be brief")]),
                ipb.Message(role=ipb.ROLE_USER, parts=[ipb.Part(text="hi")]),
            ]
        ),
        sampling=ipb.Sampling(
            temperature=0.5, top_p=0.25, top_k=-3, min_p=0.125, seed=2**64 - 1, max_tokens=-1, min_tokens=2,
            repetition_penalty=1.5, presence_penalty=0.5, frequency_penalty=-0.5, logit_bias={3: -1.5}, n=2,
            ignore_eos=True,
        ),
        stop_strings=["a", "b"],
        stop_token_ids=[7],
        logprobs=0,
    )  # fmt: skip
    assert request == expected


def test_raw_text_and_files_are_sent_as_they_are(node: FakeNode, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("from a file\n")
    vre("--run-dir", run_dir, "ask", "--raw", "--file", tmp_path / "long.txt", "--adapter", "terse")
    vre("--run-dir", run_dir, "ask", "Summarise:", "--file", "-", stdin=b"from stdin")
    assert node.seen.requests[0].raw_text == "from a file\n"
    assert [request.adapter for request in node.seen.requests] == ["terse", ""]
    assert node.seen.requests[1].chat.messages[0].parts[0].text == "Summarise:\n\nfrom stdin"


def test_tools_go_out_and_calls_come_back(node: FakeNode, run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "tools.json").write_text('[{"type": "function", "function": {"name": "get"}}]')
    begun = ipb.ToolCallDelta(call_index=0, id="call_x", name="get")
    more = ipb.ToolCallDelta(call_index=0, arguments_json="{}")
    calls = [ipb.InferenceResponse(delta=ipb.Delta(index=0, tool_call_delta=told)) for told in (begun, more)]
    node.script = script(*calls, finish(ipb.FINISH_REASON_TOOL_CALLS), Outcome.OK)
    asking = ("--run-dir", run_dir, "ask", "hi", "--tools", tmp_path / "tools.json", "--tool-choice", "get")
    assert vre(*asking).stdout == "[tool call] get {}\n"
    (request,) = node.seen.requests
    assert (list(request.tools), request.tool_choice.name) == ([ipb.Tool(name="get")], "get")
    assert [line.get("delta") or line.get("finish") for line in lines(vre(*asking, "--json"))] == [
        {"index": 0, "tool_call_delta": {"call_index": 0, "id": "call_x", "name": "get", "arguments_json": ""}},
        {"index": 0, "tool_call_delta": {"call_index": 0, "id": "", "name": "", "arguments_json": "{}"}},
        {"index": 0, "reason": "tool_calls"},
    ]


def test_several_choices_are_shown_apart(node: FakeNode, run_dir: Path) -> None:
    node.script = script(delta("a", 1), delta("b", 0), delta("c", 1), finish(index=1), finish(index=0), Outcome.OK)
    assert vre("--run-dir", run_dir, "ask", "hi", "--n", "2").stdout == "[0] b\n[1] ac\n"


def test_ctrl_c_cancels_on_the_node_and_is_130(node: FakeNode, run_dir: Path) -> None:
    node.script = script(delta("The\n"), fake_node.AWAIT_TERMINATE, finish(ipb.FINISH_REASON_CANCELLED), Outcome.OK)
    command = [*COMMAND, "--run-dir", str(run_dir), "ask", "hi", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        assert "delta" in asking.stdout.readline()
        asking.send_signal(signal.SIGINT)
        rest, _ = asking.communicate(timeout=20)
    assert asking.returncode == Exit.CANCELLED
    assert json.loads(rest)["finish"]["reason"] == "cancelled"
    assert node.seen.terminates == 1


def test_a_second_ctrl_c_leaves_at_once(node: FakeNode, run_dir: Path) -> None:
    node.script = script(delta("The\n"), fake_node.HANG)
    command = [*COMMAND, "--run-dir", str(run_dir), "ask", "hi", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as asking:
        assert asking.stdout is not None
        asking.stdout.readline()
        asking.send_signal(signal.SIGINT)
        while not node.seen.terminates:
            assert asking.poll() is None
        asking.send_signal(signal.SIGINT)
        assert asking.wait(20) == Exit.CANCELLED


def test_the_node_describes_itself(node: FakeNode, run_dir: Path) -> None:
    (said,) = lines(vre("node", "--json", "--run-dir", run_dir))
    assert (said["model"], said["attestation_kind"], said["max_batch_size"]) == ("fake", "development", 4)
    assert len(said["key_id"]) == 64
    assert said["key_id"] in vre("--run-dir", run_dir, "node").stdout


def test_a_chat_keeps_its_dialogue_and_forgets_it_on_demand(node: FakeNode, run_dir: Path) -> None:
    typed = b"one\n\ntwo\n/reset\nthree\n/system be brief\nfour\n/what\n/quit\nnever\n"
    done = vre("--run-dir", run_dir, "chat", "--adapter", "formal", stdin=typed)
    assert done.returncode == Exit.OK, done.stderr
    said = [
        [part.text for message in request.chat.messages for part in message.parts] for request in node.seen.requests
    ]
    paris = "The capital is Paris."
    assert said == [["one"], ["one", paris, "two"], ["three"], ["be brief", "four"]]
    assert done.stdout == f"{paris}\n" * 4
    assert {request.adapter for request in node.seen.requests} == {"formal"}


def test_a_turn_that_failed_is_not_kept(node: FakeNode, run_dir: Path) -> None:
    answers = iter([(delta("x"), Outcome.INTERNAL_ERROR), (delta("y"), finish(), Outcome.OK)])
    node.script = lambda _: iter(next(answers))
    vre("--run-dir", run_dir, "chat", stdin=b"one\ntwo\n")
    assert len(node.seen.requests[1].chat.messages) == 1


def test_help_documents_every_exit_code() -> None:
    told = " ".join(vre("--help").stdout.split())
    for code, meaning in MEANINGS.items():
        assert f"{code.value} {meaning}" in told
