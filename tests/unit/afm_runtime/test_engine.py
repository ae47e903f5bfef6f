"""The engine loop on a scripted model: faults first, then isolation, then the ordinary way."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from doubles.engine_harness import Answer, Harness
from doubles.scripted_engine import BLOCK, ECHO, EOS, NEVER_ENDS, NOT_FINITE, RAISES
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.afm_runtime.engine import MAX_FAILED_STEPS
from tie.afm_runtime.forwarding import NO_ADAPTER, Step
from tie.afm_runtime.sequence import State

PROMPT = [20, 21, 22, 23, 24, 25, 26]


def test_a_row_that_is_not_finite_ends_its_request_and_no_other() -> None:
    alone = Harness().ask(PROMPT)
    harness = Harness()
    before, bad, after = harness.submit(PROMPT), harness.submit([NOT_FINITE, 1, 2]), harness.submit(PROMPT)
    harness.run(before, bad, after)
    assert bad.kind == "NOT_FINITE"
    assert bad.tokens == {}
    assert before.tokens == after.tokens == alone.tokens
    assert harness.pool.free == 128


def test_a_request_that_fails_leaves_nothing_in_the_blocks_of_its_other_choices() -> None:
    harness = Harness(8)
    assert harness.ask([NOT_FINITE, 1, 2], choices=2, max_tokens=4).kind == "NOT_FINITE"
    assert harness.ask([NEVER_ENDS] * 25, max_tokens=8).tokens[0] == [5] * 8, "every block was zeroed"


def test_a_step_that_raises_ends_what_ran_in_it_and_the_next_request_succeeds() -> None:
    harness = Harness()
    mate, bad = harness.submit(PROMPT), harness.submit([RAISES])
    harness.run(mate, bad)
    assert (mate.kind, bad.kind) == ("INTERNAL", "INTERNAL")
    assert harness.pool.free == 128
    assert harness.ask([ECHO, 5, 6]).tokens == {0: [5, 6, EOS]}


def test_each_row_of_a_step_has_its_own_request_s_adapter_and_no_mate_s() -> None:
    alone = {adapter: Harness().ask(PROMPT, adapter=adapter).tokens for adapter in (NO_ADAPTER, 0, 1)}
    harness = Harness()
    answers = {adapter: harness.submit(PROMPT, adapter=adapter) for adapter in (1, NO_ADAPTER, 0)}
    harness.run(*answers.values())
    assert {adapter: answer.tokens for adapter, answer in answers.items()} == alone
    assert len({str(tokens) for tokens in alone.values()}) == 3


def test_a_step_names_adapters_only_where_a_row_has_one() -> None:
    harness, seen = Harness(), []
    harness.model.on_step = lambda step: seen.append(step.adapters)
    harness.ask(PROMPT, max_tokens=2)
    assert seen == [None, None]
    harness.run(harness.submit([NEVER_ENDS], max_tokens=4), harness.submit(PROMPT, max_tokens=2, adapter=1))
    assert [None if found is None else found.tolist() for found in seen[2:]] == [[-1, 1], [-1, 1], None, None]


def test_choices_and_what_was_preempted_keep_their_adapter() -> None:
    alone = Harness().ask(PROMPT, max_tokens=30, choices=2, adapter=1, temperature=1.0, seed=4)
    harness = Harness(block_count=20)
    older = harness.submit([NEVER_ENDS], max_tokens=60)
    answer = harness.submit(PROMPT, max_tokens=30, choices=2, adapter=1, temperature=1.0, seed=4)
    harness.run(older, answer)
    assert harness.scheduler.preempted
    assert answer.tokens == alone.tokens


def test_no_failure_text_holds_anything_of_the_request_or_the_exception() -> None:
    harness = Harness()
    assert "scripted" not in harness.ask([RAISES]).failure.message  # type: ignore[union-attr]


def test_a_model_that_fails_every_step_is_given_up() -> None:
    harness = Harness()
    thread = threading.Thread(target=harness.engine.run)
    answers = []
    for _ in range(MAX_FAILED_STEPS):
        answers.append(harness.submit([RAISES]))
        if not thread.is_alive():
            thread.start()
        wait_until(lambda: answers[-1].is_closed)
    thread.join(5)
    assert harness.suspected == 1


def test_blocks_that_do_not_add_up_end_the_engine() -> None:
    harness = Harness()
    harness.pool.take(1)  # nobody owns it
    answer = harness.submit([ECHO, 5])
    harness.engine.run()
    assert answer.is_closed
    assert harness.suspected == 1


def test_a_request_that_can_never_fit_is_refused() -> None:
    harness = Harness(4)
    assert harness.ask([1] * (BLOCK * 4 + 1), max_tokens=1).kind == "TOO_LONG"
    assert harness.ask([1] * BLOCK * 4, max_tokens=2).kind == "TOO_LONG"
    assert harness.ask([1], max_tokens=1, choices=5).kind == "TOO_LONG"
    assert harness.ask([ECHO, 7], max_tokens=10).tokens == {0: [7, EOS]}


def test_an_idle_loop_answers_a_refusal_before_it_waits_again() -> None:
    harness = Harness(4)
    answer = harness.submit([1] * 100)
    assert harness.engine.take_messages(3600)
    assert answer.is_closed


def test_a_full_queue_answers_busy_at_once_and_what_waits_is_served_in_order() -> None:
    harness = Harness(4, max_queued=2)
    running = harness.submit([NEVER_ENDS] * 13, max_tokens=3)
    harness.step()
    waiting = [harness.submit([ECHO, n] + [40] * 10, max_tokens=2) for n in (31, 32)]
    refused = harness.submit([ECHO, 33], max_tokens=2)
    harness.step()
    assert refused.kind == "BUSY"
    harness.run(running, waiting[0])
    assert not waiting[1].is_closed
    harness.run(waiting[1])
    assert waiting[1].tokens == {0: [32, 40]}


def test_a_small_request_does_not_overtake_a_large_one() -> None:
    harness = Harness(8)
    first = harness.submit([NEVER_ENDS] * 17, max_tokens=3)
    harness.step()
    large, small = harness.submit([20] * 20, max_tokens=2), harness.submit([ECHO, 9], max_tokens=2)
    while not large.is_closed:
        harness.step()
        assert small.request.state is State.QUEUED or large.request.state is not State.QUEUED
    harness.run(first, small)
    assert small.tokens == {0: [9, EOS]}


def test_a_deadline_ends_a_running_and_a_queued_request() -> None:
    harness = Harness(8)
    past = time.monotonic() - 1
    running = harness.submit([NEVER_ENDS], max_tokens=31, deadline=past)
    assert not running.is_closed
    harness.run(running)
    assert running.kind == "DEADLINE"
    harness.run()
    holder = harness.submit([NEVER_ENDS] * 25, max_tokens=7)
    harness.step()
    queued = harness.submit([ECHO, 9], max_tokens=2, deadline=past)
    harness.run(queued)
    assert queued.kind == "DEADLINE"
    assert not holder.is_closed


# Cancelling: each builds a state, and says which request is then aborted.


def queued(harness: Harness) -> Answer:
    harness.submit([NEVER_ENDS], max_tokens=100, choices=4)
    harness.step()
    return harness.submit(PROMPT, max_tokens=200)


def on_its_way(harness: Harness) -> Answer:
    return harness.submit(PROMPT)


def in_the_middle_of_its_prompt(harness: Harness) -> Answer:
    answer = harness.submit([20] * 40)
    harness.step(2)
    assert 0 < answer.request.sequences[0].computed < 40
    return answer


def decoding(harness: Harness) -> Answer:
    answer = harness.submit([NEVER_ENDS], max_tokens=40)
    harness.step(3)
    assert answer.tokens[0]
    return answer


def with_one_choice_finished(harness: Harness) -> Answer:
    answer = harness.submit(PROMPT, choices=3, max_tokens=20, temperature=1.0)
    harness.step(3)
    return answer


def finished(harness: Harness) -> Answer:
    return harness.ask([ECHO, 5])


@pytest.mark.parametrize(
    "state", [on_its_way, queued, in_the_middle_of_its_prompt, decoding, with_one_choice_finished, finished]
)
def test_cancelled_in_any_state_returns_every_block_and_disturbs_nobody(state: Callable[[Harness], Answer]) -> None:
    alone = Harness().ask(PROMPT, seed=3, temperature=1.0)
    harness = Harness()
    mate = harness.submit(PROMPT, seed=3, temperature=1.0)
    answer = state(harness)
    was_closed = answer.is_closed
    harness.engine.abort(answer.request)
    harness.engine.abort(answer.request)
    harness.step()
    assert answer.is_closed
    if not was_closed:
        reasons = {finish.reason for finish in answer.finishes.values()}
        assert len(answer.finishes) == answer.request.admitted.choices
        assert reasons == {5}
    harness.engine.abort(answer.request)
    harness.run(mate)
    assert mate.tokens == alone.tokens
    harness.run()
    assert harness.pool.free == 128


def test_an_abort_that_arrives_before_its_request() -> None:
    harness = Harness()
    holder = Harness().submit(PROMPT)  # a request of the right kind that this engine has not seen
    harness.engine.abort(holder.request)
    harness.engine.submit(holder.request)
    harness.step()
    assert holder.reason == "CANCELLED"
    assert harness.scheduler.running == 0


def test_stopping_answers_what_runs_and_what_waits() -> None:
    harness = Harness(8)
    running, waiting = harness.submit([NEVER_ENDS], max_tokens=30), harness.submit([ECHO, 1], max_tokens=30)
    harness.step()
    harness.engine.stop()
    harness.engine.run()
    assert (running.kind, waiting.kind) == ("DRAINING", "DRAINING")
    assert harness.pool.free == 8


# Isolation: what others do never shows.


@pytest.mark.parametrize("mates", [0, 1, 7])
@pytest.mark.parametrize("slot", [0, 1, 3])
def test_a_seeded_request_gives_the_same_tokens_beside_any_others(mates: int, slot: int) -> None:
    alone = Harness().ask(PROMPT, seed=11, temperature=0.7, max_tokens=20)
    harness = Harness()
    others = [harness.submit([50 + n] * (5 * n + 1), max_tokens=9) for n in range(min(slot, mates))]
    answer = harness.submit(PROMPT, seed=11, temperature=0.7, max_tokens=20)
    others += [harness.submit([60 + n] * (3 * n + 1), seed=n, temperature=1.0) for n in range(mates - len(others))]
    harness.run(answer, *others)
    assert answer.tokens == alone.tokens


@pytest.mark.parametrize("budget", [8, 9, 13, 64])
def test_how_a_prompt_is_cut_into_chunks_does_not_show(budget: int) -> None:
    prompt = [10 + n % 90 for n in range(61)]
    alone = Harness(step_token_budget=256).ask(prompt)
    harness = Harness(step_token_budget=budget)
    mate = harness.submit([NEVER_ENDS], max_tokens=40)
    answer = harness.submit(prompt)
    harness.run(mate, answer)
    assert answer.tokens == alone.tokens
    assert mate.tokens == {0: [5] * 40}


def test_one_step_mixes_decoding_rows_and_a_chunk_within_its_budget() -> None:
    harness = Harness(step_token_budget=8)
    seen: list[list[int]] = []

    def look(step: Step) -> None:
        seen.append(step.query_lens.tolist())
        assert sum(seen[-1]) <= 8

    harness.model.on_step = look
    first = harness.submit([NEVER_ENDS], max_tokens=9)
    harness.step(2)
    second = harness.submit([30] * 20, max_tokens=2)
    harness.run(first, second)
    assert [1, 7] in seen
    assert seen[-1] == [1]


def test_blocks_are_zeroed_between_owners() -> None:
    harness = Harness(4)  # the model itself fails on a block that still holds something
    for round_ in range(6):
        assert harness.ask([ECHO, 40 + round_] + [41] * round_, max_tokens=9).failure is None


# Out of blocks: the youngest gives its own back, and nobody's tokens show it.


def preempted(harness: Harness) -> Answer:
    answers = [harness.submit([NEVER_ENDS] * 9, max_tokens=40), harness.submit(PROMPT, max_tokens=40)]
    while not harness.scheduler.preempted:
        harness.step()
    assert answers[1].request.state is State.QUEUED
    assert answers[1].tokens[0]
    return answers[1]


def test_a_preempted_request_goes_on_where_it_was() -> None:
    alone = Harness(64).ask(PROMPT, seed=11, temperature=0.7, max_tokens=30, repetition_penalty=1.2)
    harness = Harness(14)
    older = harness.submit([NEVER_ENDS] * 9, max_tokens=40)
    answer = harness.submit(PROMPT, seed=11, temperature=0.7, max_tokens=30, repetition_penalty=1.2)
    harness.run(older, answer)
    assert harness.scheduler.preempted
    assert answer.tokens == alone.tokens
    assert older.tokens == {0: [5] * 40}


def test_cancelled_while_preempted() -> None:
    harness = Harness(14)
    answer = preempted(harness)
    harness.engine.abort(answer.request)
    harness.step()
    assert answer.reason == "CANCELLED"
    assert set(answer.request.sequences[0].tokens.tolist()) == {0}
    harness.run()
    assert harness.pool.free == 14


def test_one_that_fills_the_cache_to_its_last_block() -> None:
    harness = Harness(4)
    longest = 4 * BLOCK + 1 - len(PROMPT)
    assert len(harness.ask(PROMPT, max_tokens=longest).tokens[0]) == longest
    assert harness.ask(PROMPT, max_tokens=longest + 1).kind == "TOO_LONG"


def test_choices_share_the_whole_blocks_of_the_prompt() -> None:
    """Eleven tokens are two blocks of four and three more, of which the last is computed by each choice."""
    harness, fed = Harness(), []
    harness.model.on_step = lambda step: fed.append(int(step.query_lens.sum()))
    answer = harness.submit(range(20, 31), max_tokens=8, choices=3, temperature=1.0, seed=5)
    harness.step()
    assert harness.pool.free == 128 - (3 + 1 + 1)
    harness.run(answer)
    assert sum(fed) == 11 + 2 * 3 + 3 * 7
    assert harness.pool.free == 128
    assert len({str(tokens) for tokens in answer.tokens.values()}) == 3


@pytest.mark.parametrize("length", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 1, 40])
def test_a_choice_that_ends_with_its_first_token_leaves_the_others_what_it_computed(length: int) -> None:
    harness = Harness()
    answer = harness.ask(range(20, 20 + length), max_tokens=1, choices=4, temperature=1.0, seed=9)
    assert sorted(answer.finishes) == [0, 1, 2, 3]
    assert harness.pool.free == 128


def test_shared_blocks_let_more_choices_fit() -> None:
    prompt = [20] * (5 * BLOCK + 1)
    harness = Harness(5 + 4 * 1)
    assert len(harness.ask(prompt, max_tokens=2, choices=4).tokens) == 4
    assert Harness(5 + 3 * 1).ask(prompt, max_tokens=2, choices=4).kind == "TOO_LONG"


def test_choices_are_preempted_and_go_on_together() -> None:
    options = {"choices": 4, "temperature": 1.0, "seed": 2, "max_tokens": 9}
    alone = Harness(64).ask(PROMPT, **options)
    harness = Harness(14)
    older, answer = harness.submit([NEVER_ENDS] * 3, max_tokens=30), harness.submit(PROMPT, **options)
    harness.run(older, answer)
    assert harness.scheduler.preempted
    assert answer.tokens == alone.tokens
    assert older.tokens == {0: [5] * 30}


sizes = st.tuples(st.integers(1, 30), st.integers(1, 40), st.integers(1, 3), st.integers(0, 25))


@settings(max_examples=60, deadline=None)
@given(st.lists(sizes, min_size=1, max_size=5), st.integers(24, 60), st.sets(st.integers(0, 4)))
def test_any_mixture_ends_returns_its_blocks_and_answers_as_if_alone(
    requests: list[tuple[int, int, int, int]], block_count: int, cancelled: set[int]
) -> None:
    harness, answers = Harness(block_count), []

    def submit(to: Harness, length: int, most: int, choices: int) -> Answer:
        return to.submit([30 + length] * length, max_tokens=most, choices=choices, temperature=1.0, seed=most)

    for length, most, choices, steps in requests:
        answers.append(submit(harness, length, most, choices))
        harness.step(steps)
    for index in cancelled & set(range(len(answers))):
        harness.engine.abort(answers[index].request)
    harness.run(*answers)
    for index, (length, most, choices, _) in enumerate(requests):
        if index not in cancelled and answers[index].failure is None:
            alone = Harness(block_count)
            expected = submit(alone, length, most, choices)
            alone.run(expected)
            assert answers[index].tokens == expected.tokens
    assert harness.pool.free == block_count


# The ordinary way.


def test_the_answer_ends_with_its_eos() -> None:
    answer = Harness().ask([ECHO, 5, 6, 7])
    assert answer.tokens == {0: [5, 6, 7, EOS]}
    assert answer.reason == "STOP_TOKEN"
    assert (answer.usage.prompt, answer.usage.completion) == (4, 4)  # type: ignore[union-attr]


def test_one_token_is_the_shortest_answer() -> None:
    answer = Harness().ask([ECHO], max_tokens=1)
    assert answer.tokens == {0: [EOS]}
    answer = Harness().ask([NEVER_ENDS], max_tokens=1)
    assert (answer.tokens, answer.reason) == ({0: [5]}, "LENGTH")


def test_min_tokens_bars_the_eos_that_the_model_wants() -> None:
    answer = Harness().ask([ECHO, 9], min_tokens=4, max_tokens=20)
    assert answer.tokens == {0: [9, 5, 5, 5, EOS]}


def test_a_stop_string_over_two_tokens_ends_the_answer_and_says_where() -> None:
    answer = Harness(spelling={30: b"good", 31: b"b", 32: b"ye now"}).ask(
        [ECHO, 30, 31, 32, 33], stops=[b"xxx", b"bye"]
    )
    assert answer.tokens == {0: [30, 31, 32]}
    (finish,) = answer.finishes.values()
    assert (answer.reason, finish.stop_index, finish.stop_byte_offset) == ("STOP_STRING", 1, 4)


def test_choices_of_one_request_differ_by_their_index_only() -> None:
    answer = Harness().ask(PROMPT, choices=3, temperature=1.0, seed=5)
    assert sorted(answer.finishes) == [0, 1, 2]
    assert len({tuple(tokens) for tokens in answer.tokens.values()}) == 3
    assert answer.tokens[0] == Harness().ask(PROMPT, temperature=1.0, seed=5).tokens[0]
    assert answer.usage.completion == sum(map(len, answer.tokens.values()))  # type: ignore[union-attr]


def test_all_choices_are_admitted_together() -> None:
    harness = Harness(16, max_running=3)
    first = harness.submit([NEVER_ENDS], max_tokens=15)
    harness.step()
    three = harness.submit([ECHO, 5], max_tokens=2, choices=3)
    harness.step(3)
    assert three.request.sequences == []
    harness.run(first, three)
    assert three.tokens == {n: [5, EOS] for n in range(3)}


def test_log_probabilities_come_on_request_only() -> None:
    assert Harness().ask([ECHO, 5]).logprobs == [None, None]
    assert all(Harness().ask([ECHO, 5], logprobs=2).logprobs)


def test_only_rules_that_look_back_are_given_the_history() -> None:
    harness = Harness()
    histories: list[list[int]] = []

    def look(step: Step) -> None:
        histories.extend(row.history.tolist() for row in step.sampling if row is not None)

    harness.model.on_step = look
    harness.ask([ECHO, 5, 6])
    harness.ask([ECHO, 5, 6], repetition_penalty=1.5)
    assert histories == [[]] * 3 + [[ECHO, 5, 6], [ECHO, 5, 6, 5], [ECHO, 5, 6, 5, 6]]


def test_nothing_of_a_request_is_left_in_the_engine() -> None:
    harness = Harness()
    answer = harness.ask(PROMPT)
    harness.run()
    assert set(answer.request.admitted.prompt.tolist()) == {0}
    assert set(answer.request.sequences[0].tokens.tolist()) == {0}
    assert (harness.model._kv == -7).all()


def test_the_thread_takes_requests_while_it_runs() -> None:
    harness = Harness()
    thread = threading.Thread(target=harness.engine.run)
    thread.start()
    answers = [harness.submit([ECHO, n, n]) for n in range(10, 40)]
    wait_until(lambda: all(answer.is_closed for answer in answers if answer.failure is None))
    harness.engine.stop()
    thread.join(10)
    assert not thread.is_alive()
    served = [answer for answer in answers if answer.failure is None]
    assert served
    assert all(answer.tokens == {0: [*answer.tokens[0][:2], EOS]} for answer in served)


def wait_until(holds: Callable[[], bool], timeout_s: float = 10.0) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, "did not come about in time"
        time.sleep(0.001)
