"""What may happen to a runtime's prefix pool, and what is then to be done. A table: no memory is touched here."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final


class State(Enum):
    NONE = auto()  # there is no owner: nothing is cached
    EMPTY = auto()
    WARMING = auto()
    SEALED = auto()
    FAILED = auto()  # nothing is served from it; requests are, without it


class Event(Enum):
    WARM = auto()
    SEAL = auto()
    RESTORED = auto()
    FAILED = auto()


class Action(Enum):
    NOTHING = auto()
    ALLOCATE_AND_COMPUTE = auto()
    COMPUTE = auto()
    SEAL_AND_SERVE = auto()
    SERVE = auto()
    DROP = auto()


class IllegalTransition(Exception):
    """It does not go with the state."""


TRANSITIONS: Final[Mapping[tuple[State, Event], tuple[State, Action]]] = {
    (State.EMPTY, Event.WARM): (State.WARMING, Action.ALLOCATE_AND_COMPUTE),
    (State.EMPTY, Event.RESTORED): (State.SEALED, Action.SERVE),
    (State.EMPTY, Event.FAILED): (State.FAILED, Action.DROP),
    (State.WARMING, Event.WARM): (State.WARMING, Action.COMPUTE),
    (State.WARMING, Event.SEAL): (State.SEALED, Action.SEAL_AND_SERVE),
    (State.WARMING, Event.FAILED): (State.FAILED, Action.DROP),
    (State.SEALED, Event.FAILED): (State.FAILED, Action.DROP),
    (State.FAILED, Event.FAILED): (State.FAILED, Action.NOTHING),
}


def step(state: State, event: Event) -> tuple[State, Action]:
    """Raises IllegalTransition."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"prefix pool: {event.name} in state {state.name}") from None
