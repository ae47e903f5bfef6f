"""Readers that do not read: held, then ended, at a bounded cost and nobody else's."""

from __future__ import annotations

import time

import pytest
from doubles.engine_harness import Answer, Harness
from doubles.scripted_engine import ECHO, NEVER_ENDS

from tie.afm_runtime import engine, sequence

MOST = 10


@pytest.fixture(autouse=True)
def a_small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequence, "MOST_UNREAD", MOST)


def held(harness: Harness, **options: int) -> Answer:
    answer = harness.submit([NEVER_ENDS], max_tokens=100, **options)
    harness.step(MOST + 20)
    assert len(answer.tokens[0]) == MOST
    assert not answer.is_closed
    return answer


def waits(answer: Answer, seconds: float) -> None:
    """As if it had been held so much longer."""
    assert answer.request.stalled_at is not None
    answer.request.stalled_at -= seconds


def test_who_reads_nothing_is_held_and_then_ended() -> None:
    harness = Harness()
    answer = held(harness)
    waits(answer, engine.STALL_S)
    harness.engine._next_look = 0
    harness.step()
    assert answer.kind == "STALLED"
    assert harness.pool.free == 128


def test_where_others_wait_for_its_blocks_it_is_ended_sooner() -> None:
    harness = Harness(26)
    answer = held(harness)
    waiting = harness.submit([NEVER_ENDS] * 97, max_tokens=7)
    harness.step(2)
    assert harness.scheduler.queued == 1
    waits(answer, engine.STALL_WANTED_S)
    harness.engine._next_look = 0
    harness.step(2)
    assert answer.kind == "STALLED"
    assert harness.scheduler.queued == 0
    harness.engine.abort(waiting.request)
    harness.step()


def test_a_held_request_takes_no_step_and_makes_the_loop_wait() -> None:
    harness = Harness()
    held(harness)
    steps = harness.model.steps
    begin = time.monotonic()
    assert harness.engine.take_messages(0.05)
    harness.engine.step()
    assert harness.model.steps == steps
    assert time.monotonic() - begin >= 0.04, "an engine with nothing to do spins"


def test_it_goes_on_once_it_is_read_and_says_the_same() -> None:
    harness = Harness()
    answer = held(harness)
    mate = harness.ask([ECHO, 7])
    assert mate.tokens[0][0] == 7
    for read in range(3, 105, 5):
        harness.engine.read(answer.request, read)
        harness.step(6)
    assert answer.tokens[0] == [5] * 100
    assert answer.reason == "LENGTH"


def test_reading_a_little_is_not_reading_nothing() -> None:
    harness = Harness()
    answer = held(harness)
    waits(answer, engine.STALL_S - 1)
    harness.engine.read(answer.request, 1)
    harness.step(2)
    assert answer.request.stalled_at is not None
    assert time.monotonic() - answer.request.stalled_at < 1
    before = answer.request.stalled_at
    harness.engine.read(answer.request, 1)
    harness.step()
    assert answer.request.stalled_at == before, "what was said before is nothing new"


def test_a_reader_cannot_have_read_more_than_there_was() -> None:
    harness = Harness()
    answer = harness.submit([NEVER_ENDS], max_tokens=100)
    harness.step(2)
    harness.engine.read(answer.request, 1 << 60)
    harness.step(MOST + 20)
    assert len(answer.tokens[0]) == MOST + 2


def test_the_choices_of_a_request_are_held_together() -> None:
    harness = Harness()
    answer = harness.submit([NEVER_ENDS], max_tokens=100, choices=4)
    harness.step(MOST)
    assert sum(map(len, answer.tokens.values())) == -(-MOST // 4) * 4


def test_a_held_request_can_be_cancelled() -> None:
    harness = Harness()
    answer = held(harness)
    harness.engine.abort(answer.request)
    harness.step()
    assert answer.is_closed
    assert harness.pool.free == 128
