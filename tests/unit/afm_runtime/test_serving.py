"""All threads of the runtime together, without Triton: link, intake, engine and sender, on the scripted model."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles import scripted_engine
from doubles.runtime_calls import name, params
from doubles.scripted_engine import CONTEXT, ECHO, EOS, IDENTITY, NEVER_ENDS, SLOW, ScriptedEngine
from numpy.typing import NDArray

from tie.afm_runtime.intake import Refused
from tie.afm_runtime.serving import Serving
from tie.api.afm.v1 import afm_pb2
from tie.clients.runtime_control import RuntimeControl
from tie.clients.runtime_link import RuntimeLink
from tie.contracts.paths import RunPaths


class Inputs:
    def __init__(self, tokens: Sequence[int] | None, params: afm_pb2.GenerateParams | Exception | None) -> None:
        self._tokens, self._params = tokens, params

    def tokens(self, most: int) -> NDArray[np.int32] | None:
        if self._tokens is not None and len(self._tokens) > most:
            raise Refused(afm_pb2.FAILURE_KIND_TOO_LONG, "input TOKENS has too many items")
        return None if self._tokens is None else np.array(self._tokens, np.int32)

    def params(self) -> NDArray[np.uint8] | None:
        if isinstance(self._params, Exception):
            raise self._params
        return None if self._params is None else np.frombuffer(self._params.SerializeToString(), np.uint8)

    def images(self) -> NDArray[Any] | None:
        return None


class Channel:
    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.events: list[afm_pb2.GenerateEvent] = []
        self.began = threading.Event()
        self.done = threading.Event()
        self.cancelled = False

    def send(self, tokens: list[int], event: bytes, is_final: bool) -> None:
        self.tokens += tokens
        self.events.append(afm_pb2.GenerateEvent.FromString(event))
        self.began.set()
        if is_final:
            assert not self.done.is_set()
            self.done.set()

    def send_final_flag(self) -> None:
        self.done.set()

    def is_cancelled(self) -> bool:
        return self.cancelled

    @property
    def outcome(self) -> str:
        assert self.done.wait(10)
        last = self.events[-1]
        if last.HasField("failure"):
            return name(last.failure.kind)
        finishes = [finish for event in self.events for finish in event.finishes]
        return afm_pb2.FinishReason.Name(finishes[-1].reason).removeprefix("FINISH_REASON_")


class Served:
    def __init__(self, root: Path) -> None:
        self.paths = RunPaths(root)
        self.paths.runtime_socket.parent.mkdir()
        self.model = ScriptedEngine(128)
        self.serving = Serving(scripted_engine.attached(engine=self.model), self.paths, on_suspect=lambda: None)
        self.serving.start()

    def link(self) -> RuntimeLink:
        return RuntimeLink.connect(self.paths.runtime_socket, 5)

    def ask(self, prompt: Sequence[int] | None, link: RuntimeLink | None = None, **changes: Any) -> Channel:
        channel = Channel()
        own = self.link() if link is None else link
        self.serving.take(Inputs(prompt, params(own.ticket, **changes)), channel)
        if link is None:
            assert channel.done.wait(10)
            own.close()
        return channel


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path)
    yield running
    # Whatever a test did, the largest request there can be is served, and every block is free again.
    assert running.ask([NEVER_ENDS], max_tokens=CONTEXT).tokens == [5] * (CONTEXT - 1)
    running.serving.stop()
    running.serving.scheduler.check()
    assert running.serving.scheduler._pool.free == 128
    assert not [thread for thread in threading.enumerate() if thread.name in {"engine", "sender", "link"}]


def test_no_inputs_at_all(served: Served) -> None:
    channel = Channel()
    served.serving.take(Inputs(None, None), channel)
    assert channel.outcome == "INVALID"


def test_inputs_that_cannot_be_read_are_that_requests_failure(served: Served) -> None:
    channel = Channel()
    served.serving.take(Inputs([1], MemoryError("marker")), channel)
    assert channel.outcome == "INTERNAL"
    assert "marker" not in channel.events[-1].failure.message


def test_an_unknown_adapter_is_a_failure_and_a_known_one_makes_another_answer(served: Served) -> None:
    refused = served.ask([20, 21], adapter="marker")
    assert refused.outcome == "INVALID"
    assert "marker" not in refused.events[-1].failure.message
    answers = [served.ask([20, 21], adapter=adapter).tokens for adapter in ("", "formal", "terse", "formal")]
    assert answers[1] == answers[3]
    assert len({tuple(answer) for answer in answers}) == 3


def test_a_refused_request_has_used_its_ticket(served: Served) -> None:
    with served.link() as link:
        assert served.ask([ECHO, 5], link, n=0).outcome == "INVALID"
        assert served.ask([ECHO, 5], link).outcome == "NO_TICKET"


@pytest.mark.parametrize("prompt", [None, [], [-1], [scripted_engine.VOCAB], [1] * CONTEXT, [1] * (CONTEXT + 1)])
def test_prompts_that_cannot_run(served: Served, prompt: list[int] | None) -> None:
    assert served.ask(prompt).outcome in {"INVALID", "TOO_LONG"}


@pytest.mark.parametrize("how", ["abort", "close", "call"])
@pytest.mark.parametrize("command", [SLOW, ECHO])
def test_every_way_to_cancel_ends_the_request_whatever_its_state(served: Served, how: str, command: int) -> None:
    link = served.link()
    prompt = [command, *([7] * 100 if command == ECHO else [])]
    channel = served.ask(prompt, link, max_tokens=CONTEXT)
    if command == SLOW:
        assert channel.began.wait(10)
    if how == "abort":
        link.abort()
    elif how == "close":
        link.close()
    else:
        channel.cancelled = True
    assert channel.outcome in ({"CANCELLED"} if command == SLOW else {"CANCELLED", "STOP_TOKEN"})
    link.close()


def test_a_ticket_of_a_closed_link_is_dead(served: Served) -> None:
    with served.link() as link, served.link() as witness:
        ticket = link.ticket
        link.abort()
        witness.wait_gone(0)
        channel = Channel()
        while not (channel.done.is_set() and channel.events[-1].HasField("failure")):
            channel = Channel()
            served.serving.take(Inputs([ECHO, 5], params(ticket)), channel)
            assert channel.done.wait(10)
            assert channel.outcome in {"NO_TICKET", "CANCELLED", "STOP_TOKEN"}


def test_stopping_answers_what_runs(tmp_path: Path) -> None:
    served = Served(tmp_path)
    with served.link() as link:
        channel = served.ask([SLOW], link, max_tokens=200)
        assert channel.began.wait(10)
        served.serving.stop()
        assert channel.outcome == "DRAINING"
        assert link.wait_gone(5)


def test_many_requests_at_a_time_get_their_own_answers(served: Served) -> None:
    links = [served.link() for _ in range(8)]
    channels = [served.ask([ECHO, 20 + n, 30 + n], link) for n, link in enumerate(links)]
    for n, channel in enumerate(channels):
        assert channel.outcome in {"STOP_TOKEN", "BUSY"}
        assert channel.tokens in ([], [20 + n, 30 + n, EOS])
    for link in links:
        link.close()


def test_the_control_socket_says_what_was_done(served: Served) -> None:
    served.ask([ECHO, 5, 6])
    served.ask(None)
    with RuntimeControl.connect(served.paths.runtime_control_socket, 5) as control:
        status = control.status()
        metrics = status.metrics
    assert status.bundle_identity == IDENTITY
    assert (metrics.requests_accepted, metrics.requests_finished, metrics.requests_refused) == (1, 1, 1)
    assert (metrics.prompt_tokens, metrics.completion_tokens, metrics.tokens_computed) == (3, 3, 5)
    assert (metrics.running, metrics.queued_interactive, metrics.blocks_free) == (0, 0, metrics.blocks_total)
    assert 0 < metrics.model_s < metrics.uptime_s


def test_a_reader_says_what_it_took_over_its_link(served: Served) -> None:
    """Otherwise a second answer of the same length would be held."""
    with served.link() as link:
        channel = served.ask([NEVER_ENDS], link, max_tokens=CONTEXT)
        link.took(7)
        assert channel.done.wait(10)
