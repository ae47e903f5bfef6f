"""The order of a job, as decisions only: `serving` acts on them. Docs print the diagram from this table."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from tie.api.job.v1 import job_pb2
from tie.contracts.errors import OutOfOrder


class State(Enum):
    COLD = auto()
    WARM = auto()  # everything is loaded; no request yet
    RECEIVING = auto()  # the deadline is armed; the request comes in chunks
    RUNNING = auto()  # the request is here, whole
    ENDED = auto()


class Event(Enum):
    WARMUP = auto()
    PARAMETERS = auto()
    CHUNK = auto()
    FINAL_CHUNK = auto()
    TEARDOWN = auto()


class Action(Enum):
    WARM_UP = auto()
    ARM = auto()
    COLLECT = auto()
    RUN = auto()
    LEAVE = auto()
    ABORT = auto()  # what runs is told to stop; its last words are sent


TRANSITIONS: Final[Mapping[tuple[State, Event], tuple[State, Action]]] = {
    (State.COLD, Event.WARMUP): (State.WARM, Action.WARM_UP),
    (State.COLD, Event.TEARDOWN): (State.ENDED, Action.LEAVE),
    (State.WARM, Event.PARAMETERS): (State.RECEIVING, Action.ARM),
    (State.WARM, Event.TEARDOWN): (State.ENDED, Action.LEAVE),
    (State.RECEIVING, Event.CHUNK): (State.RECEIVING, Action.COLLECT),
    (State.RECEIVING, Event.FINAL_CHUNK): (State.RUNNING, Action.RUN),
    (State.RECEIVING, Event.TEARDOWN): (State.ENDED, Action.LEAVE),
    (State.RUNNING, Event.TEARDOWN): (State.ENDED, Action.ABORT),
}


def step(state: State, event: Event) -> tuple[State, Action]:
    """Raises OutOfOrder for a frame that has no place in this state."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise OutOfOrder(f"job: {event.name} in state {state.name}") from None


def event_of(frame: job_pb2.JobFrame) -> Event:
    """Raises OutOfOrder for a frame that only this side sends."""
    match frame.WhichOneof("frame"):
        case "warmup":
            return Event.WARMUP
        case "parameters":
            return Event.PARAMETERS
        case "request_chunk":
            return Event.FINAL_CHUNK if frame.request_chunk.is_final else Event.CHUNK
        case "teardown":
            return Event.TEARDOWN
        case kind:
            raise OutOfOrder(f"job: the helper sent {kind}, which only the app sends")
