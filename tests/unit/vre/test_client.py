"""The blocking client against a node on a real socket: every way that an answer can fail to come, then answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from doubles import fake_node
from doubles.fake_node import FakeNode, Outcome, delta, finish

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.api.inference.v1 import inference_pb2 as ipb
from tie.vre import (
    AttestationRefused,
    BadAnswer,
    CallFailed,
    Client,
    Delta,
    Event,
    NodeError,
    NodeUnreachable,
    Progress,
    Truncated,
)


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as serving:
        yield serving


@pytest.fixture
def client(node: FakeNode) -> Iterator[Client]:
    with Client(node.address, allow_development_attestation=True) as made:
        yield made


def script(*steps: Any) -> fake_node.Script:
    return lambda _: iter(steps)


def names(events: list[Event]) -> list[str]:
    return [event.name for event in events]


def test_nobody_listens() -> None:
    with Client("127.0.0.1:1", allow_development_attestation=True) as client, pytest.raises(NodeUnreachable):
        list(client.ask("hi"))


def test_a_development_attestation_is_refused_unless_allowed(node: FakeNode) -> None:
    with Client(node.address) as client, pytest.raises(AttestationRefused, match="development"):
        list(client.ask("hi"))
    assert node.seen.requests == []


def test_a_key_id_that_is_not_the_bundles_digest_is_refused(node: FakeNode, client: Client) -> None:
    node.lies_about_key_id = True
    with pytest.raises(AttestationRefused, match="SHA-256"):
        client.node_key()


@pytest.mark.parametrize("kind", [pb.ATTESTATION_KIND_UNSPECIFIED, 77])
def test_an_attestation_of_unknown_kind_is_refused(node: FakeNode, client: Client, kind: Any) -> None:
    node.kind = kind
    with pytest.raises(AttestationRefused, match=f"kind {kind}"):
        client.node_key()


def test_an_attestation_that_has_ended_is_refused(node: FakeNode, client: Client) -> None:
    node.lifetime_s = -1000
    with pytest.raises(AttestationRefused, match="ended"):
        client.node_key()


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (grpc.StatusCode.UNAVAILABLE, NodeUnreachable),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, CallFailed),
        (grpc.StatusCode.PERMISSION_DENIED, CallFailed),
        (grpc.StatusCode.FAILED_PRECONDITION, CallFailed),
    ],
)
def test_a_status_before_the_answer_is_a_typed_error(
    node: FakeNode, client: Client, code: grpc.StatusCode, expected: type[Exception]
) -> None:
    node.setup_code = code
    with pytest.raises(expected) as raised:
        list(client.ask("hi"))
    if isinstance(raised.value, CallFailed):
        assert raised.value.kind == code.name.lower()


def test_an_answer_that_the_node_cuts_is_marked(node: FakeNode, client: Client) -> None:
    node.script = script(delta("The capi"), fake_node.CUT)
    events = list(client.ask("hi"))
    assert names(events) == ["delta", "truncated"]


def test_a_finish_without_the_sealed_end_is_still_truncated(node: FakeNode, client: Client) -> None:
    node.script = script(delta("Paris."), finish(), fake_node.CUT)
    assert names(list(client.ask("hi"))) == ["delta", "finish", "truncated"]


def test_a_call_that_fails_in_mid_answer_is_a_truncation_with_its_status(node: FakeNode, client: Client) -> None:
    node.script = script(delta("The capi"), fake_node.Fault("abort", grpc.StatusCode.INTERNAL))
    *_, last = client.ask("hi")
    assert isinstance(last, Truncated)
    assert last.reason.startswith("internal")


def test_a_node_that_stops_in_mid_answer_is_a_truncation(client: Client, node: FakeNode) -> None:
    node.script = script(delta("The capi"), fake_node.HANG)
    events = []
    for event in client.ask("hi"):
        events.append(event)
        if isinstance(event, Delta):
            threading.Thread(target=node.__exit__, daemon=True).start()
    assert names(events) == ["delta", "truncated"]


def test_an_altered_chunk_is_refused_after_what_was_whole(node: FakeNode, client: Client) -> None:
    node.script = script(delta("true "), fake_node.TAMPER, delta("false"))
    events = iter(client.ask("hi"))
    assert next(events).name == "delta"
    with pytest.raises(BadAnswer, match="does not open"):
        next(events)


def test_a_message_without_an_event_is_refused(node: FakeNode, client: Client) -> None:
    node.script = script(ipb.InferenceResponse(padding=bytes(8)), Outcome.OK)
    with pytest.raises(BadAnswer, match="holds no event"):
        list(client.ask("hi"))


def test_silence_past_the_gap_is_a_typed_error_not_a_hang(node: FakeNode, client: Client) -> None:
    node.script = script(delta("The"), fake_node.HANG)
    *_, last = client.ask("hi", gap_s=0.3)
    assert isinstance(last, Truncated)
    assert "nothing came for 0.3 s" in last.reason


def test_the_whole_answer_has_a_deadline(node: FakeNode, client: Client) -> None:
    node.script = script(fake_node.HANG)
    with pytest.raises(CallFailed) as raised:
        list(client.ask("hi", timeout_s=0.5))
    assert raised.value.kind == "deadline_exceeded"


@pytest.mark.parametrize("outcome", [Outcome.INTERNAL_ERROR, Outcome.INVALID_REQUEST, Outcome.UNAUTHENTICATED])
def test_an_end_that_is_no_success_is_an_error_event(node: FakeNode, client: Client, outcome: Outcome) -> None:
    node.script = script(delta("The"), outcome)
    *_, last = client.ask("hi")
    assert isinstance(last, NodeError)
    assert last.kind in outcome.name.lower()


def test_the_nodes_own_error_is_not_doubled(node: FakeNode, client: Client) -> None:
    error = ipb.Error(kind=ipb.ERROR_KIND_PROMPT_TOO_LONG, message="9 of 8 tokens", where="chat")
    node.script = script(ipb.InferenceResponse(error=error), Outcome.INVALID_REQUEST)
    (only,) = client.ask("hi")
    assert isinstance(only, NodeError)
    assert (only.kind, only.message, only.where) == ("prompt_too_long", "9 of 8 tokens", "chat")


def test_a_key_that_a_restart_made_stale_is_fetched_again(node: FakeNode, client: Client) -> None:
    assert client.complete("hi").text == "The capital is Paris."
    node.renew_key()
    node.attestation()  # the node now knows another key id than the client does
    assert client.complete("hi").text == "The capital is Paris."
    assert node.seen.attestations == 2


def test_an_unknown_key_that_is_the_current_one_is_not_tried_for_ever(node: FakeNode, client: Client) -> None:
    node.setup_code = grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(CallFailed, match="invalid_argument"):
        list(client.ask("hi"))


def test_cancelling_sends_one_terminate_and_shows_what_still_comes(node: FakeNode, client: Client) -> None:
    node.script = script(delta("The"), fake_node.AWAIT_TERMINATE, finish(ipb.FINISH_REASON_CANCELLED), Outcome.OK)
    answer, events = client.ask("hi"), []
    for event in answer:
        events.append(event)
        answer.cancel()
    assert names(events) == ["delta", "finish"]
    assert node.seen.terminates == 1
    assert answer.was_cancelled


def test_cancelling_before_the_start_sends_nothing(node: FakeNode, client: Client) -> None:
    answer = client.ask("hi")
    answer.cancel()
    assert list(answer) == []
    assert node.seen.requests == []


def test_leaving_the_iteration_ends_the_call(node: FakeNode, client: Client) -> None:
    node.script = script(delta("The"), delta(" cat"), fake_node.HANG)
    events = iter(client.ask("hi"))
    next(events)
    events.close()  # type: ignore[attr-defined]
    assert client.complete("again", timeout_s=0.001 + 5, gap_s=0.3).truncated is not None


def test_an_answer_streams_and_is_whole(node: FakeNode, client: Client) -> None:
    whole = client.complete("What is the capital of France?")
    assert whole.is_whole
    assert whole.text == "The capital is Paris."
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert (whole.usage.prompt, whole.usage.completion) == (7, 4)
    assert node.seen.half_closed.wait(5)
    (request,) = node.seen.requests
    assert request.chat.messages[0].parts[0].text == "What is the capital of France?"
    assert request.sampling.temperature == 0.0


def test_progress_and_choices_come_through(node: FakeNode, client: Client) -> None:
    progress = ipb.InferenceResponse(progress=ipb.Progress())
    node.script = script(progress, delta("a", 0), delta("b", 1), finish(index=1), finish(index=0), Outcome.OK)
    events = list(client.ask("hi"))
    assert isinstance(events[0], Progress)
    assert [event.index for event in events if isinstance(event, Delta)] == [0, 1]


def test_the_keys_are_fetched_once_for_many_requests(node: FakeNode, client: Client) -> None:
    for _ in range(3):
        client.complete("hi")
    assert node.seen.attestations == 1


def test_a_long_prompt_crosses_in_several_chunks(node: FakeNode, client: Client) -> None:
    text = "word " * 300_000
    assert client.complete(text).is_whole
    assert node.seen.requests[0].chat.messages[0].parts[0].text == text
    assert node.seen.opened_bytes == [2 << 20]


def test_the_load_is_what_the_node_publishes(node: FakeNode, client: Client) -> None:
    assert client.load().max_batch_size == 4
