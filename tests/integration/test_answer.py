"""The main job, over the whole path: real processes, real Triton, a real model."""

from __future__ import annotations

import subprocess

import pytest
from doubles.running_node import RunningNode, wait_until

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]


def test_the_capital_of_germany_is_berlin(node: RunningNode) -> None:
    done = subprocess.run(
        node.command("ask", "What is the capital of Germany?"), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "Berlin" in done.stdout


def test_json_events_are_the_contract_by_field_name(node: RunningNode) -> None:
    answer = node.ask("What is the capital of Germany?", "--max-tokens", "8")
    assert answer.exit_code == 0, answer.errors
    assert answer.first("delta")["index"] == 0
    assert answer.first("finish")["index"] == 0
    usage = answer.first("usage")
    assert usage["completion"] <= 8
    assert usage["prompt"] > 10


def test_greedy_answers_repeat_and_seeds_decide(node: RunningNode) -> None:
    greedy = {node.ask("Name a colour.", "--max-tokens", "12").text for _ in range(3)}
    assert len(greedy) == 1
    sampled = [
        node.ask("Name a colour.", "--max-tokens", "12", "--temperature", "1.5", "--seed", seed).text for seed in "1121"
    ]
    assert sampled[0] == sampled[1] == sampled[3]
    assert sampled[0] != sampled[2]


def test_every_request_has_processes_of_its_own(node: RunningNode) -> None:
    seen: set[int] = set()
    for _ in range(5):
        before = node.per_request_pids()
        assert node.ask("Say hi.", "--max-tokens", "2").exit_code == 0
        wait_until(lambda before=before: len(before - node.per_request_pids()) >= 2, "a helper and an app ended")
        gone = before - node.per_request_pids()
        assert not gone & seen
        seen |= gone


def test_several_choices_come_apart_by_index(node: RunningNode) -> None:
    answer = node.ask("Name an animal.", "--n", "3", "--temperature", "1.2", "--seed", "5", "--max-tokens", "6")
    assert answer.exit_code == 0, answer.errors
    assert {event["finish"]["index"] for event in answer.events if "finish" in event} == {0, 1, 2}


def test_a_stop_string_never_shows(node: RunningNode) -> None:
    whole = node.ask("Count from one to ten in digits.", "--max-tokens", "40").text
    stop = whole[len(whole) // 2 : len(whole) // 2 + 4]
    answer = node.ask("Count from one to ten in digits.", "--max-tokens", "40", "--stop", stop)
    assert answer.text == whole[: whole.index(stop)]
    assert answer.first("finish")["reason"].lower().endswith("stop")


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (("--temperature", "-1"), "sampling.temperature"),
        (("--top-p", "0"), "sampling.top_p"),
        (("--top-p", "7"), "sampling.top_p"),
        (("--top-k", "-5"), "sampling.top_k"),
        (("--n", "0"), "sampling.n"),
        (("--n", "9"), "sampling.n"),
        (("--max-tokens", "-1"), "sampling.max_tokens"),
        (("--max-tokens", "9223372036854775807"), "sampling.max_tokens"),
        (("--min-tokens", "9", "--max-tokens", "3"), "sampling.min_tokens"),
        (("--temperature", "nan"), "sampling.temperature"),
        (("--model", "another-model"), "model"),
    ],
)
def test_refusals_name_the_field_and_the_next_request_is_served(
    node: RunningNode, options: tuple[str, ...], where: str
) -> None:
    refused = node.ask("hello", *options)
    assert refused.exit_code not in (0, 4)
    assert refused.first("error")["where"] == where, refused
    assert node.ask("Say hi.", "--max-tokens", "2").exit_code == 0


def test_a_prompt_longer_than_the_context_is_refused_with_both_numbers(node: RunningNode) -> None:
    refused = node.ask("--file", "-", stdin="word " * 9000)
    error = refused.first("error")
    assert error["kind"].lower().endswith("prompt_too_long"), refused
    assert "8192" in error["message"]
    assert any(int(number) > 9000 for number in error["message"].replace(",", " ").split() if number.isdigit())


def test_zero_tokens_are_a_valid_empty_answer(node: RunningNode) -> None:
    answer = node.ask("hello", "--max-tokens", "0")
    assert (answer.exit_code, answer.text) == (0, "")
    assert answer.first("finish")["reason"].lower().endswith("length")


def test_a_cancelled_request_frees_its_processes(node: RunningNode) -> None:
    asking = node.start_asking("Tell me a very long story.", "--ignore-eos", "--max-tokens", "4000")
    assert asking.stdout is not None
    assert "delta" in asking.stdout.readline()
    busy = node.per_request_pids()
    asking.send_signal(2)
    asking.communicate(timeout=15)
    assert asking.returncode == 130
    wait_until(lambda: len(busy - node.per_request_pids()) >= 2, "the cancelled pair ended")
    assert node.ask("Say hi.", "--max-tokens", "2").exit_code == 0
