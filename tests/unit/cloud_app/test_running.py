"""What ends a request from outside: its deadline, a teardown, a helper that failed, an error that nobody foresaw."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from doubles.tiny_model import BPE_VOCAB_SIZE, CHAT_TEMPLATE, tokenizer_file

from tie.api.afm.v1 import afm_pb2
from tie.api.inference.v1 import inference_pb2 as pb
from tie.api.job.v1 import job_pb2
from tie.catalog import TokenizerDescription
from tie.clients.inference import Reply
from tie.cloud_app import deadline as deadline_module
from tie.cloud_app import running as running_module
from tie.cloud_app.config import Config
from tie.cloud_app.deadline import Deadline
from tie.cloud_app.intake import Offer
from tie.cloud_app.running import OVERRUN_EXIT_CODE, Running
from tie.contracts.errors import DeadlinePassed, TieError
from tie.prompting.byte_bpe import ByteBpe
from tie.prompting.templates import Templates

MARKER = "MARKER7f3a"
WAIT_S = 10.0
TOKENIZER = ByteBpe(tokenizer_file("byte_bpe"), BPE_VOCAB_SIZE)
REQUEST = pb.InferenceRequest(raw_text=MARKER).SerializeToString()


class Recorder:
    def __init__(self) -> None:
        self.responses: list[pb.InferenceResponse] = []
        self.outcome: job_pb2.Outcome.ValueType | None = None
        self.progressed = threading.Event()

    def message(self, padded: bytes) -> None:
        response = pb.InferenceResponse.FromString(padded)
        self.responses.append(response)
        if response.HasField("progress"):
            self.progressed.set()

    def end(self, outcome: job_pb2.Outcome.ValueType) -> None:
        assert self.outcome is None
        self.outcome = outcome

    @property
    def errors(self) -> list[int]:
        return [response.error.kind for response in self.responses if response.HasField("error")]


class Stream:
    """A generation: what `script` yields, or what it was failed with."""

    def __init__(self, script: Callable[[Stream], Iterator[Reply]]) -> None:
        self._script = script(self)
        self.failed = threading.Event()
        self.failure: TieError | None = None

    def fail(self, reason: TieError) -> None:
        self.failure = reason
        self.failed.set()

    def __iter__(self) -> Iterator[Reply]:
        yield from self._script
        if self.failure is not None:
            raise self.failure


class Link:
    ticket = bytes(16)

    def __init__(self) -> None:
        self.aborted = threading.Event()
        self.on_gone: Callable[[], None] = lambda: None

    def watch(self, on_gone: Callable[[], None]) -> None:
        self.on_gone = on_gone

    def abort(self) -> None:
        self.aborted.set()


def warmed(script: Callable[[Stream], Iterator[Reply]]) -> Any:
    templates = Templates({"chat": CHAT_TEMPLATE}, TOKENIZER.controls, chat_template="chat")
    return SimpleNamespace(
        described=SimpleNamespace(tokenizer=TokenizerDescription("byte_bpe", 1, False, (2,))),
        identity=bytes(32),
        tokenizer=TOKENIZER,
        templates=templates,
        context_length=512,
        offer=Offer("tiny", BPE_VOCAB_SIZE, True, templates.parameters),
        link=Link(),
        client=SimpleNamespace(generate=lambda *_, **__: Stream(script)),
    )


def ends(reason: afm_pb2.FinishReason.ValueType = afm_pb2.FINISH_REASON_LENGTH) -> Reply:
    return Reply((), afm_pb2.GenerateEvent(finishes=[afm_pb2.Finish(reason=reason)]))


def waits_for_failure(stream: Stream) -> Iterator[Reply]:
    assert stream.failed.wait(WAIT_S)
    yield from ()


def test_a_main_thread_that_misses_its_deadline_is_overrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_module, "GRACE_S", 0.01)
    ended, code = threading.Event(), []

    def leave(status: int) -> None:
        code.append(status)
        ended.set()

    monkeypatch.setattr(running_module.os, "_exit", leave)

    def stuck(_: Stream) -> Iterator[Reply]:
        assert ended.wait(WAIT_S)
        yield from ()

    recorder = Recorder()
    assert not Running(recorder, warmed(stuck), Config(), Deadline(0.05)).run(REQUEST, {}) or code
    assert code[0] == OVERRUN_EXIT_CODE
    assert recorder.errors == [pb.ERROR_KIND_DEADLINE]
    assert recorder.outcome == job_pb2.OUTCOME_INTERNAL_ERROR


def test_a_long_silence_is_broken_once_the_request_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_module, "_TICK_S", 0.01)
    monkeypatch.setattr(running_module, "PROGRESS_AFTER_S", 0.0)
    recorder = Recorder()

    def slow(_: Stream) -> Iterator[Reply]:
        assert recorder.progressed.wait(WAIT_S)
        yield ends()

    running = Running(recorder, warmed(slow), Config(), Deadline(60.0))
    running._tick()
    assert recorder.responses == []  # not before the request is whole
    assert running.run(REQUEST, {})
    assert recorder.outcome == job_pb2.OUTCOME_OK


def test_a_teardown_before_the_dispatch_dispatches_nothing() -> None:
    recorder, ready = Recorder(), warmed(lambda _: iter((ends(),)))
    running = Running(recorder, ready, Config(), Deadline(60.0))
    running.tear_down()
    assert running.run(REQUEST, {})
    assert ready.link.aborted.is_set()
    assert [response.WhichOneof("event") for response in recorder.responses] == ["finish"]
    assert recorder.responses[0].finish.reason == pb.FINISH_REASON_CANCELLED
    assert recorder.outcome == job_pb2.OUTCOME_OK


def test_a_runtime_that_does_not_abort_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tie.cloud_app.dispatch.ABORT_TIMEOUT_S", 0.02)
    recorder = Recorder()
    begun = threading.Event()

    def deaf(stream: Stream) -> Iterator[Reply]:
        begun.set()
        yield from waits_for_failure(stream)

    running = Running(recorder, warmed(deaf), Config(), Deadline(60.0))
    thread = threading.Thread(target=lambda: begun.wait(WAIT_S) and running.tear_down())
    thread.start()
    assert running.run(REQUEST, {})
    thread.join(WAIT_S)
    assert (recorder.errors, recorder.outcome) == ([], job_pb2.OUTCOME_OK)


def test_a_runtime_that_is_gone_before_the_dispatch_is_told_of() -> None:
    recorder, ready = Recorder(), warmed(lambda _: iter((ends(),)))
    running = Running(recorder, ready, Config(), Deadline(60.0))
    ready.link.on_gone()
    assert running.run(REQUEST, {})
    assert recorder.errors == [pb.ERROR_KIND_RUNTIME_LOST]


def test_a_helper_that_failed_makes_the_job_fail() -> None:
    recorder = Recorder()
    running = Running(recorder, warmed(lambda _: iter((ends(),))), Config(), Deadline(60.0))
    running.helper_failed()
    assert not running.run(REQUEST, {})
    assert recorder.outcome == job_pb2.OUTCOME_INTERNAL_ERROR


def test_a_request_that_does_not_become_whole_is_refused_with_a_verdict() -> None:
    recorder = Recorder()
    running = Running(recorder, warmed(lambda _: iter(())), Config(), Deadline(60.0))
    assert running.refuse(DeadlinePassed("too late"), {})
    assert (recorder.errors, recorder.outcome) == ([pb.ERROR_KIND_DEADLINE], job_pb2.OUTCOME_INTERNAL_ERROR)


def test_an_error_that_nobody_foresaw_says_nothing_of_the_request(capsys: pytest.CaptureFixture[str]) -> None:
    def breaks(_: Stream) -> Iterator[Reply]:
        raise RuntimeError(MARKER)
        yield

    recorder = Recorder()
    assert Running(recorder, warmed(breaks), Config(), Deadline(60.0)).run(REQUEST, {})
    assert recorder.errors == [pb.ERROR_KIND_INTERNAL]
    assert MARKER not in str(recorder.responses)
    assert MARKER not in "".join(capsys.readouterr())
