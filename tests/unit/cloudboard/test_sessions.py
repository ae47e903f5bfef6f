"""The order of a stream, as a table: what it does not know is refused by name."""

from __future__ import annotations

import itertools

import pytest

from tie.cloudboard.sessions import TRANSITIONS, Action, Event, State, step
from tie.contracts.errors import OutOfOrder

ALLOWED = set(TRANSITIONS)
REFUSED = [pair for pair in itertools.product(State, Event) if pair not in ALLOWED]


def walk(*events: Event) -> tuple[State, list[Action]]:
    state, actions = State.OPENED, []
    for event in events:
        state, action = step(state, event)
        actions.append(action)
    return state, actions


@pytest.mark.parametrize(("state", "event"), REFUSED, ids=lambda value: value.name.lower())
def test_every_other_pair_is_refused_with_both_names(state: State, event: Event) -> None:
    with pytest.raises(OutOfOrder, match=f"{event.name.lower()} came while the stream was {state.name.lower()}"):
        step(state, event)


@pytest.mark.parametrize(
    "events",
    [
        (Event.PARAMETERS,),
        (Event.CHUNK,),
        (Event.TERMINATE,),
        (Event.SETUP, Event.SETUP),
        (Event.SETUP, Event.CHUNK),
        (Event.SETUP, Event.PARAMETERS, Event.PARAMETERS),
        (Event.SETUP, Event.PARAMETERS, Event.HALF_CLOSE),
        (Event.SETUP, Event.PARAMETERS, Event.FINAL_CHUNK, Event.CHUNK),
        (Event.SETUP, Event.PARAMETERS, Event.FINAL_CHUNK, Event.FINAL_CHUNK),
        (Event.SETUP, Event.TERMINATE, Event.TERMINATE),
        (Event.SETUP, Event.PARAMETERS, Event.TERMINATE, Event.TERMINATE),
        (Event.SETUP, Event.PARAMETERS, Event.TERMINATE, Event.CHUNK),
    ],
)
def test_the_last_of_these_is_out_of_order(events: tuple[Event, ...]) -> None:
    walk(*events[:-1])
    with pytest.raises(OutOfOrder):
        walk(*events)


def test_terminate_is_taken_in_every_state_after_setup() -> None:
    for state in (State.SET_UP, State.UPLOADING, State.ANSWERING):
        assert step(state, Event.TERMINATE)[0] is State.TERMINATED


def test_a_whole_request() -> None:
    state, actions = walk(Event.SETUP, Event.PARAMETERS, Event.CHUNK, Event.FINAL_CHUNK, Event.HALF_CLOSE)
    assert state is State.ANSWERING
    forwards = [Action.FORWARD, Action.FORWARD]
    assert actions == [Action.ACKNOWLEDGE, Action.BIND_PAIR, *forwards, Action.NOTHING]
