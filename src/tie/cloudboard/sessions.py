"""The order of one InvokeWorkload stream. Decisions only: invocation.py acts on them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from tie.contracts.errors import OutOfOrder


class State(Enum):
    OPENED = auto()  # nothing said yet
    SET_UP = auto()  # acknowledged; holds no pair
    UPLOADING = auto()  # has its pair; request chunks arrive
    ANSWERING = auto()  # the final request chunk is here
    TERMINATED = auto()  # the client gave up


class Event(Enum):
    SETUP = auto()
    PARAMETERS = auto()
    CHUNK = auto()
    FINAL_CHUNK = auto()
    TERMINATE = auto()
    HALF_CLOSE = auto()  # the client sends nothing more


class Action(Enum):
    ACKNOWLEDGE = auto()
    BIND_PAIR = auto()
    FORWARD = auto()
    TEAR_DOWN = auto()  # tell the helper
    END = auto()  # nothing was bound: only the stream ends
    NOTHING = auto()


TRANSITIONS: Final[Mapping[tuple[State, Event], tuple[State, Action]]] = {
    (State.OPENED, Event.SETUP): (State.SET_UP, Action.ACKNOWLEDGE),
    (State.SET_UP, Event.PARAMETERS): (State.UPLOADING, Action.BIND_PAIR),
    (State.SET_UP, Event.TERMINATE): (State.TERMINATED, Action.END),
    (State.UPLOADING, Event.CHUNK): (State.UPLOADING, Action.FORWARD),
    (State.UPLOADING, Event.FINAL_CHUNK): (State.ANSWERING, Action.FORWARD),
    (State.UPLOADING, Event.TERMINATE): (State.TERMINATED, Action.TEAR_DOWN),
    (State.ANSWERING, Event.TERMINATE): (State.TERMINATED, Action.TEAR_DOWN),
    (State.ANSWERING, Event.HALF_CLOSE): (State.ANSWERING, Action.NOTHING),
    (State.TERMINATED, Event.HALF_CLOSE): (State.TERMINATED, Action.NOTHING),
}


def step(state: State, event: Event) -> tuple[State, Action]:
    """Raises OutOfOrder for anything that the table does not know."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise OutOfOrder(f"{event.name.lower()} came while the stream was {state.name.lower()}") from None
