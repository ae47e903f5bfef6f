"""Padded, in order, and nothing after the verdict; the process that hangs is ended from another thread."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tie.api.inference.v1.inference_pb2 import Delta, InferenceResponse
from tie.api.job.v1 import job_pb2
from tie.cloud_app import deadline as deadline_module
from tie.cloud_app.deadline import Clock, Deadline
from tie.cloud_app.outbox import FileSink, Outbox
from tie.contracts.errors import DeadlinePassed, PeerGone, TieError
from tie.contracts.limits import RESPONSE_BUCKETS

OK = job_pb2.OUTCOME_OK


class Recorder:
    def __init__(self, fault: TieError | None = None) -> None:
        self.fault = fault
        self.written: list[bytes | int] = []

    def message(self, padded: bytes) -> None:
        if self.fault is not None:
            raise self.fault
        self.written.append(padded)

    def end(self, outcome: job_pb2.Outcome.ValueType) -> None:
        self.written.append(outcome)


def delta(text: str) -> InferenceResponse:
    return InferenceResponse(delta=Delta(text=text))


@pytest.mark.parametrize("fault", [PeerGone("gone"), DeadlinePassed("stuck")])
def test_a_reader_that_is_gone_is_told_of_once_and_gets_no_more(fault: TieError) -> None:
    told: list[int] = []
    recorder = Recorder(fault)
    outbox = Outbox(recorder, lambda: told.append(1))
    outbox.send([delta("a"), delta("b")])
    recorder.fault = None
    outbox.send([delta("c")])
    outbox.progress_after(0.0)
    assert outbox.end(OK)
    assert (told, recorder.written, outbox.count) == ([1], [], 0)
    assert outbox.is_reader_gone


def test_nothing_follows_the_verdict() -> None:
    recorder = Recorder()
    outbox = Outbox(recorder)
    outbox.send([delta("a")])
    assert outbox.end(OK)
    outbox.send([delta("b")])
    outbox.progress_after(0.0)
    assert not outbox.end(job_pb2.OUTCOME_INTERNAL_ERROR)
    assert len(recorder.written) == 2
    assert recorder.written[-1] == OK


def test_every_message_has_a_buckets_size() -> None:
    recorder = Recorder()
    outbox = Outbox(recorder)
    outbox.send(delta("x" * size) for size in range(0, 4000, 37))
    assert {len(written) for written in recorder.written if isinstance(written, bytes)} <= set(RESPONSE_BUCKETS)


def test_progress_is_sent_only_after_silence() -> None:
    recorder = Recorder()
    outbox = Outbox(recorder)
    outbox.progress_after(3600.0)
    assert recorder.written == []
    outbox.progress_after(0.0)
    (written,) = recorder.written
    assert isinstance(written, bytes)
    assert len(written) == RESPONSE_BUCKETS[0]
    assert InferenceResponse.FromString(written).WhichOneof("event") == "progress"


def test_a_file_gets_length_and_message(tmp_path: Path) -> None:
    outbox = Outbox(FileSink(tmp_path / "out"))
    outbox.send([delta("a"), delta("b" * 200)])
    outbox.end(OK)
    data = (tmp_path / "out").read_bytes()
    assert data[:4] == (128).to_bytes(4, "big")
    assert data[132:136] == (256).to_bytes(4, "big")
    assert len(data) == 4 + 128 + 4 + 256


def test_the_clock_ticks_until_the_deadline_and_then_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_module, "GRACE_S", 0.01)
    monkeypatch.setattr(deadline_module, "_TICK_S", 0.01)
    ticked, over = threading.Event(), threading.Event()
    Clock(Deadline(0.1), ticked.set, over.set)
    assert over.wait(5.0)
    assert ticked.is_set()


def test_a_clock_that_is_stopped_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline_module, "GRACE_S", 0.0)
    over = threading.Event()
    clock = Clock(Deadline(3600.0), lambda: None, over.set)
    clock.stop()
    clock._thread.join(5.0)
    assert not clock._thread.is_alive()
    assert not over.is_set()
