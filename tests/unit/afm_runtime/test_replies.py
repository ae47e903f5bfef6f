from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from tie.afm_runtime import replies
from tie.afm_runtime.forwarding import Logprobs
from tie.afm_runtime.replies import Outbox, Sender
from tie.api.afm.v1 import afm_pb2


class Channel:
    """Triton's side: keeps what it is sent, and can hold the sender, fail, or be cancelled."""

    def __init__(self) -> None:
        self.sent: list[tuple[list[int], afm_pb2.GenerateEvent, bool]] = []
        self.finals = 0
        self.go = threading.Event()
        self.go.set()
        self.arrived = threading.Event()
        self.done = threading.Event()
        self.fails = False
        self.cancelled = False

    def send(self, tokens: list[int], event: bytes, is_final: bool) -> None:
        self.arrived.set()
        assert self.go.wait(10)
        if self.fails:
            raise RuntimeError("gone")
        self.sent.append((tokens, afm_pb2.GenerateEvent.FromString(event), is_final))
        if is_final:
            self._end()

    def send_final_flag(self) -> None:
        self._end()

    def is_cancelled(self) -> bool:
        return self.cancelled

    def _end(self) -> None:
        self.finals += 1
        self.done.set()


@pytest.fixture
def sender() -> Iterator[Sender]:
    running = Sender()
    thread = threading.Thread(target=running.run)
    thread.start()
    yield running
    running.stop()
    thread.join(5)
    assert not thread.is_alive()


def usage() -> afm_pb2.Usage:
    return afm_pb2.Usage(prompt=1, completion=2)


def test_a_send_that_fails_still_sends_the_final_flag_once_and_aborts(sender: Sender) -> None:
    channel, cancelled = Channel(), threading.Event()
    channel.fails = True
    outbox = sender.open(channel)
    sender.watch(outbox, cancelled.set)
    outbox.token(0, 5, None)
    sender.flush()
    assert cancelled.wait(5)
    outbox.close(usage(), None)
    sender.flush()
    assert channel.done.wait(5)
    assert (channel.sent, channel.finals) == ([], 1)


def test_a_cancelled_call_is_noticed_without_anything_to_send(sender: Sender) -> None:
    channel, cancelled = Channel(), threading.Event()
    sender.watch(sender.open(channel), cancelled.set)
    assert not cancelled.wait(0.05)
    channel.cancelled = True
    assert cancelled.wait(5)


def test_what_gathers_while_the_sender_is_busy_goes_out_as_one_response(sender: Sender) -> None:
    channel = Channel()
    outbox = sender.open(channel)
    channel.go.clear()
    outbox.token(0, 1, None)
    sender.flush()
    assert channel.arrived.wait(5)
    for token in (2, 3, 4):
        outbox.token(0, token, None)
        sender.flush()
    outbox.finish(afm_pb2.Finish(choice=0, reason=afm_pb2.FINISH_REASON_LENGTH))
    outbox.close(usage(), None)
    sender.flush()
    channel.go.set()
    assert channel.done.wait(5)
    assert [tokens for tokens, _, _ in channel.sent] == [[1], [2, 3, 4]]
    assert [final for _, _, final in channel.sent] == [False, True]
    event = channel.sent[1][1]
    assert (event.runs[0].count, event.finishes[0].reason, event.usage) == (3, afm_pb2.FINISH_REASON_LENGTH, usage())
    assert channel.finals == 1


def test_a_first_token_and_an_end_go_out_at_once_and_what_is_between_keeps_its_distance(
    sender: Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replies, "RESPONSE_GAP_S", 30.0)
    channel = Channel()
    outbox = sender.open(channel)
    sender.watch(outbox, lambda: None)
    outbox.token(0, 1, None)
    sender.flush()
    assert channel.arrived.wait(5)
    for token in (2, 3):
        outbox.token(0, token, None)
        sender.flush()
    assert not channel.done.wait(0.1)
    assert [tokens for tokens, _, _ in channel.sent] == [[1]]
    outbox.finish(afm_pb2.Finish(choice=0, reason=afm_pb2.FINISH_REASON_LENGTH))
    sender.flush()
    outbox.close(usage(), None)
    sender.flush()
    assert channel.done.wait(5)
    assert [token for tokens, _, _ in channel.sent for token in tokens] == [1, 2, 3]
    assert channel.finals == 1


def test_what_was_not_due_goes_out_when_it_is(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replies, "RESPONSE_GAP_S", 0.05)
    channel = Channel()
    outbox = sender.open(channel)
    sender.watch(outbox, lambda: None)
    begin = time.monotonic()
    for token in range(4):
        outbox.token(0, token, None)
        sender.flush()
        if token == 0:
            assert channel.arrived.wait(5)
    while len(channel.sent) < 2:
        assert time.monotonic() < begin + 5
        time.sleep(0.001)
    assert time.monotonic() - begin >= 0.05
    assert [tokens for tokens, _, _ in channel.sent] == [[0], [1, 2, 3]]


def test_one_slow_request_does_not_lose_anothers_order(sender: Sender) -> None:
    channels = [Channel() for _ in range(5)]
    outboxes = [sender.open(channel) for channel in channels]
    for token in range(200):
        for outbox in outboxes:
            outbox.token(0, token, None)
        sender.flush()
    for outbox in outboxes:
        outbox.close(usage(), None)
    sender.flush()
    for channel in channels:
        assert channel.done.wait(5)
        assert [token for tokens, _, _ in channel.sent for token in tokens] == list(range(200))
        assert [final for _, _, final in channel.sent].count(True) == 1


def test_runs_follow_the_order_of_their_tokens() -> None:
    outbox = Outbox(Channel(), Sender())
    for choice, token in ((0, 1), (0, 2), (1, 3), (0, 4)):
        outbox.token(choice, token, Logprobs(-1.0, (9,), (-2.0,)) if choice else None)
    tokens, event, is_final = outbox.collect()
    assert (tokens, is_final) == ([1, 2, 3, 4], False)
    assert [(run.choice, run.count) for run in event.runs] == [(0, 2), (1, 1), (0, 1)]
    assert list(event.runs[1].logprobs[0].alternative_ids) == [9]
    assert not event.HasField("usage")


def test_a_refusal_is_one_final_response(sender: Sender) -> None:
    channel = Channel()
    sender.refuse(channel, afm_pb2.Failure(kind=afm_pb2.FAILURE_KIND_BUSY, message="full"))
    assert channel.done.wait(5)
    ((tokens, event, is_final),) = channel.sent
    assert (tokens, event.failure.message, is_final, channel.finals) == ([], "full", True, 1)
