"""The way out: every message padded, whole, in order, from whatever thread; and one verdict, last.

A reader that is gone is not an error here: what is sent to it is dropped, and whoever runs the request is told once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from tie.api.inference.v1.inference_pb2 import InferenceResponse, Progress
from tie.api.job.v1 import job_pb2
from tie.cloud_app.padding import pad
from tie.cloud_app.wire import LENGTH, JobChannel
from tie.contracts.errors import DeadlinePassed, PeerGone

_PROGRESS: Final = InferenceResponse(progress=Progress())


class Sink(Protocol):
    """Raises PeerGone or DeadlinePassed when nobody takes what is written."""

    def message(self, padded: bytes) -> None: ...

    def end(self, outcome: job_pb2.Outcome.ValueType) -> None: ...


class Outbox:
    """May be used from any thread; nothing follows `end`."""

    def __init__(self, sink: Sink, on_reader_gone: Callable[[], None] = lambda: None) -> None:
        self._sink = sink
        self._on_reader_gone = on_reader_gone
        self._lock = threading.RLock()
        self._last = time.monotonic()
        self._is_closed = False
        self.is_reader_gone = False
        self.count = 0

    def send(self, responses: Iterable[InferenceResponse]) -> None:
        for response in responses:
            self._write(pad(response.SerializeToString()))

    def progress_after(self, silence_s: float) -> None:
        """A sign of life, if nothing was sent for that long."""
        with self._lock:
            if time.monotonic() - self._last >= silence_s:
                self._write(pad(_PROGRESS.SerializeToString()))

    def end(self, outcome: job_pb2.Outcome.ValueType) -> bool:
        """The verdict; False when another thread gave one before."""
        with self._lock:
            if self._is_closed:
                return False
            self._is_closed = True
            if not self.is_reader_gone:
                self._attempt(lambda: self._sink.end(outcome))
            return True

    def _write(self, padded: bytes) -> None:
        with self._lock:
            if self._is_closed or self.is_reader_gone:
                return
            self._last = time.monotonic()
            if self._attempt(lambda: self._sink.message(padded)):
                self.count += 1

    def _attempt(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except (PeerGone, DeadlinePassed):
            self.is_reader_gone = True
            self._on_reader_gone()
            return False
        return True


class JobSink:
    """To the helper."""

    def __init__(self, channel: JobChannel) -> None:
        self._channel = channel

    def message(self, padded: bytes) -> None:
        self._channel.send(job_pb2.JobFrame(response_chunk=job_pb2.ResponseChunk(data=padded)))

    def end(self, outcome: job_pb2.Outcome.ValueType) -> None:
        self._channel.send(job_pb2.JobFrame(end_job=job_pb2.EndJob(outcome=outcome)))


class FileSink:
    """To a file, each message after four bytes of its length."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")

    def message(self, padded: bytes) -> None:
        self._file.write(LENGTH.pack(len(padded)) + padded)

    def end(self, outcome: job_pb2.Outcome.ValueType) -> None:
        self._file.close()
