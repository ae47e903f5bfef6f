"""The order of a job: every pair of state and event either stands in the table or is refused."""

from __future__ import annotations

from itertools import product

import pytest

from tie.api.job.v1 import job_pb2
from tie.cloud_app.job import TRANSITIONS, Action, Event, State, event_of, step
from tie.contracts.errors import OutOfOrder

WHOLE = [Event.WARMUP, Event.PARAMETERS, Event.CHUNK, Event.CHUNK, Event.FINAL_CHUNK]


@pytest.mark.parametrize(
    ("before", "event"),
    [
        ([], Event.PARAMETERS),
        ([], Event.CHUNK),
        ([], Event.FINAL_CHUNK),
        (WHOLE[:1], Event.WARMUP),  # a second warm-up
        (WHOLE[:1], Event.CHUNK),  # before the parameters
        (WHOLE[:2], Event.PARAMETERS),  # a second time
        (WHOLE[:2], Event.WARMUP),
        (WHOLE, Event.CHUNK),  # after the final one
        (WHOLE, Event.FINAL_CHUNK),
        (WHOLE, Event.PARAMETERS),
        ([*WHOLE, Event.TEARDOWN], Event.TEARDOWN),
    ],
)
def test_what_comes_out_of_order_is_refused(before: list[Event], event: Event) -> None:
    state = State.COLD
    for earlier in before:
        state, _ = step(state, earlier)
    with pytest.raises(OutOfOrder, match=f"{event.name} in state {state.name}"):
        step(state, event)


def test_a_whole_job_is_in_order() -> None:
    state, actions = State.COLD, []
    for event in WHOLE:
        state, action = step(state, event)
        actions.append(action)
    assert actions == [Action.WARM_UP, Action.ARM, Action.COLLECT, Action.COLLECT, Action.RUN]
    assert step(state, Event.TEARDOWN) == (State.ENDED, Action.ABORT)


def test_a_teardown_is_in_order_at_any_time() -> None:
    for state in State:
        if state is not State.ENDED:
            assert step(state, Event.TEARDOWN)[0] is State.ENDED


def test_every_pair_is_decided() -> None:
    for state, event in product(State, Event):
        if (state, event) not in TRANSITIONS:
            with pytest.raises(OutOfOrder):
                step(state, event)


@pytest.mark.parametrize(
    "frame",
    [
        job_pb2.JobFrame(warmup_done=job_pb2.WarmupDone()),
        job_pb2.JobFrame(response_chunk=job_pb2.ResponseChunk()),
        job_pb2.JobFrame(end_job=job_pb2.EndJob()),
        job_pb2.JobFrame(),
    ],
)
def test_the_helper_sends_none_of_the_apps_frames(frame: job_pb2.JobFrame) -> None:
    with pytest.raises(OutOfOrder):
        event_of(frame)
