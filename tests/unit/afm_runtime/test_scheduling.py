"""Whose turn it is: two classes without starvation, short prompts beside long ones, who gives blocks back."""

from __future__ import annotations

from doubles.engine_harness import Answer, Harness
from doubles.scripted_engine import ECHO, NEVER_ENDS
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.afm_runtime.scheduling.pace import LEAST_TOKENS, Pace
from tie.afm_runtime.scheduling.waiting import INTERACTIVE_TURNS
from tie.afm_runtime.sequence import MOST_PREEMPTED, State


def is_running(answer: Answer) -> bool:
    return answer.request.state is State.RUNNING


def ended_in_order(harness: Harness, answers: list[Answer]) -> list[int]:
    """Places of the answers, in the order in which they were closed."""
    order: list[int] = []
    for _ in range(500):
        harness.step()
        order += [place for place, answer in enumerate(answers) if answer.is_closed and place not in order]
        if len(order) == len(answers):
            return order
    raise AssertionError("not all were answered")


def test_background_requests_cannot_fill_the_queue() -> None:
    harness = Harness(max_running=1, max_queued=4)
    harness.submit([NEVER_ENDS], max_tokens=50)
    harness.step()
    waiting = [harness.submit([ECHO, 5], background=True) for _ in range(3)]
    mine = [harness.submit([ECHO, 5]) for _ in range(3)]
    harness.step()
    assert [answer.is_closed for answer in waiting + mine] == [False, False, True, False, False, True]
    assert (waiting[2].kind, mine[2].kind) == ("BUSY", "BUSY")


def test_an_interactive_request_overtakes_the_background_that_waits() -> None:
    harness = Harness(max_running=1, max_queued=8)
    harness.submit([NEVER_ENDS], max_tokens=5)
    harness.step()
    answers = [harness.submit([ECHO, n], background=n < 13) for n in (11, 12, 13, 14)]
    assert ended_in_order(harness, answers) == [2, 3, 0, 1]


def test_the_background_has_its_turn_however_many_come() -> None:
    harness = Harness(max_running=1, max_queued=64)
    harness.submit([NEVER_ENDS], max_tokens=5)
    harness.step()
    background = harness.submit([ECHO, 11], background=True)
    interactive = [harness.submit([ECHO, 12]) for _ in range(3 * INTERACTIVE_TURNS)]
    order = ended_in_order(harness, [background, *interactive])
    assert order.index(0) <= INTERACTIVE_TURNS


def test_the_youngest_of_the_background_gives_its_blocks_back_first() -> None:
    harness = Harness(12)
    old, younger = (harness.submit([NEVER_ENDS] * 9, max_tokens=20, background=True) for _ in range(2))
    mine = harness.submit([NEVER_ENDS] * 5, max_tokens=20)
    harness.step()
    assert [is_running(answer) for answer in (old, younger, mine)] == [True, True, True]
    while not harness.scheduler.preempted:
        harness.step()
    assert [is_running(answer) for answer in (old, younger, mine)] == [True, False, True]
    harness.run(old, younger, mine)
    assert [answer.tokens for answer in (old, younger, mine)] == [{0: [5] * 20}] * 3


def test_what_gave_its_blocks_back_often_enough_is_asked_no_more() -> None:
    harness = Harness(12)
    victim = harness.submit([NEVER_ENDS] * 5, max_tokens=36, background=True)
    others: list[Answer] = []
    for _ in range(400):
        if len([answer for answer in others if not answer.is_closed]) < 2:
            others.append(harness.submit([NEVER_ENDS] * 5, max_tokens=20))
        harness.step()
        if victim.is_closed:
            break
    assert victim.tokens == {0: [5] * 36}
    assert victim.request.preempted >= MOST_PREEMPTED


def test_a_short_prompt_does_not_wait_for_a_long_one_which_gets_on_all_the_same() -> None:
    harness = Harness(step_token_budget=16)
    fed: list[list[int]] = []
    harness.model.on_step = lambda step: fed.append(step.query_lens.tolist())
    long = harness.submit([ECHO, *range(20, 140)], max_tokens=1)
    harness.step()
    short = harness.submit([ECHO, 7, 8], max_tokens=1)
    harness.step()
    assert short.tokens == {0: [7]}
    assert fed == [[16], [3, 4]], "the step of its first token is short"
    many = [harness.submit([ECHO, *range(30, 43)], max_tokens=1) for _ in range(4)]
    harness.step()
    assert sum(fed[-1]) == 16
    assert 4 in fed[-1]  # a quarter for the oldest
    harness.run(long, *many)
    assert long.tokens == {0: [20]}


def test_interactive_prompts_come_before_shorter_ones_of_the_background() -> None:
    harness = Harness(step_token_budget=16)
    harness.submit([NEVER_ENDS] * 40, max_tokens=1)
    harness.step()
    background = harness.submit([ECHO, 5], max_tokens=1, background=True)
    mine = harness.submit([ECHO, *range(20, 31)], max_tokens=1)
    harness.step()
    assert mine.tokens == {0: [20]}
    assert background.tokens == {}
    harness.run(background)


arrivals = st.lists(
    st.tuples(st.integers(1, 30), st.integers(1, 12), st.integers(1, 3), st.booleans(), st.integers(0, 6)),
    min_size=1,
    max_size=14,
)


@settings(max_examples=60)
@given(arrivals, st.integers(14, 40), st.integers(8, 24))
def test_all_are_answered_as_if_alone_and_no_step_exceeds_its_budget(
    arriving: list[tuple[int, int, int, bool, int]], blocks: int, budget: int
) -> None:
    harness, answers = Harness(blocks, step_token_budget=budget, max_queued=64), []
    fed: list[int] = []
    harness.model.on_step = lambda step: fed.append(int(step.query_lens.sum()))
    for length, most, choices, background, pause in arriving:
        asked = {"max_tokens": most, "choices": choices, "temperature": 1.0, "seed": most}
        alone = Harness(256).ask([30 + length] * length, **asked)
        answers.append((harness.submit([30 + length] * length, background=background, **asked), alone))
        harness.step(pause)
    harness.run(*(answer for answer, _ in answers))
    for answer, alone in answers:
        assert answer.failure is not None or answer.tokens == alone.tokens
        assert answer.failure is None or answer.kind == "TOO_LONG"
    assert max(fed, default=0) <= budget
    assert harness.pool.free == blocks


def test_a_step_has_as_many_tokens_as_its_time_lets_it() -> None:
    pace = Pace(256, 0.04)
    assert pace.tokens == LEAST_TOKENS, "nothing is known yet"
    for _ in range(40):
        pace.note(64, 64 * 0.0004)
    assert pace.tokens == 100
    pace.note(1, 10.0)
    pace.note(64, 0.0)
    assert pace.tokens == 100, "too small a step, or a clock that stood still, says nothing"
    for _ in range(60):
        pace.note(64, 64 * 0.5)
    assert pace.tokens == LEAST_TOKENS
    for _ in range(60):
        pace.note(64, 64e-9)
    assert pace.tokens == 256
    assert Pace(16).tokens == 16


def test_rows_that_decode_leave_something_for_prompts_and_no_step_exceeds_its_most() -> None:
    harness = Harness(step_token_budget=24, max_running=8, max_queued=8)
    harness.scheduler.pace._token_s = 1.0
    fed: list[list[int]] = []
    harness.model.on_step = lambda step: fed.append(step.query_lens.tolist())
    decoding = [harness.submit([NEVER_ENDS], max_tokens=60) for _ in range(7)]
    harness.step(2)
    long = harness.submit([ECHO, *range(20, 100)], max_tokens=1)
    harness.step()
    assert fed[-1] == [1] * 7 + [17]
    harness.run(long, *decoding)
    assert max(map(sum, fed)) == 24
