"""An app that does what the request's text says, behind a real listener: `python fake_app.py SOCKET EVENTS`.

One thread per connection stands for one process per request. What it saw of each job (never the payload) is appended
to EVENTS, a line an event, so that a test can wait for a teardown or an end of file.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from pathlib import Path

from tie.api.job.v1 import job_pb2
from tie.servicekit.listening import listen_unix


class JobEnded(Exception):
    """The helper closed its socket or sent Teardown."""


class Connection:
    """One job."""

    def __init__(self, connection: socket.socket, events: Path) -> None:
        self._connection, self._events = connection, events
        self._file = connection.makefile("rb")

    def run(self) -> None:
        self._note("connected")
        try:
            self._expect("warmup")
            self._send(warmup_done=job_pb2.WarmupDone())
            parameters = self._expect("parameters").parameters
            data = b""
            while True:
                chunk = self._expect("request_chunk").request_chunk
                data += chunk.data
                if chunk.is_final:
                    break
            self._note("dispatched")
            self._obey(data, parameters)
        except (JobEnded, OSError) as error:
            self._note(f"ended {error}")
        finally:
            self._file.close()
            self._connection.close()

    def _obey(self, data: bytes, parameters: job_pb2.Parameters) -> None:
        verb, _, argument = data.partition(b" ")
        match verb.decode():
            case "echo":
                self._respond(argument)
                self._end(job_pb2.OUTCOME_OK)
            case "count":  # so many messages of 128 bytes, one after another
                for number in range(int(argument)):
                    self._respond(b"%0128d" % number)
                self._end(job_pb2.OUTCOME_OK)
            case "drip":  # one message, then another every so many milliseconds until torn down
                while True:
                    self._respond(b"drop")
                    self._wait(int(argument) / 1000)
            case "flood":  # large messages until nobody reads
                while True:
                    self._respond(b"\0" * 16384)
            case "hang":
                self._wait(3600)
            case "crash":  # an answer begins, then the process is gone
                self._respond(b"begun")
            case "outcome":
                self._end(int(argument))
            case "garbage":
                self._connection.sendall(b"\x00\x00\x00\x03\xff\xff\xff")
                self._wait(5)
            case "huge":
                self._connection.sendall(b"\x7f\xff\xff\xff")
                self._wait(5)
            case "kvkey":
                self._respond(parameters.kv_request_key)
                self._end(job_pb2.OUTCOME_OK)
            case "metadata":
                routing = "&".join(f"{name}={value}" for name, value in sorted(parameters.metadata.items()))
                self._respond(routing.encode())
                self._end(job_pb2.OUTCOME_OK)
            case "size":
                self._respond(str(len(data)).encode())
                self._end(job_pb2.OUTCOME_OK)
            case _:
                self._end(job_pb2.OUTCOME_INVALID_REQUEST)

    def _respond(self, data: bytes) -> None:
        self._send(response_chunk=job_pb2.ResponseChunk(data=data))

    def _end(self, outcome: int) -> None:
        self._send(end_job=job_pb2.EndJob(outcome=job_pb2.Outcome.Name(outcome)))  # type: ignore[arg-type]

    def _wait(self, seconds: float) -> None:
        self._connection.settimeout(seconds)
        try:
            self._expect("teardown")
            self._note("teardown")
            raise JobEnded("by teardown")
        except TimeoutError:
            self._file = self._connection.makefile("rb")  # a timed out file object cannot be read again
        finally:
            self._connection.settimeout(None)

    def _expect(self, kind: str) -> job_pb2.JobFrame:
        header = self._file.read(4)
        if len(header) < 4:
            raise JobEnded("by end of file")
        frame = job_pb2.JobFrame.FromString(self._file.read(int.from_bytes(header, "big")))
        found = frame.WhichOneof("frame")
        if found == "teardown" and kind != "teardown":
            self._note("teardown")
            raise JobEnded("by teardown")
        if found != kind:
            raise JobEnded(f"by {found} where {kind} belongs")
        return frame

    def _send(self, **fields: object) -> None:
        body = job_pb2.JobFrame(**fields).SerializeToString()  # type: ignore[arg-type]
        self._connection.sendall(len(body).to_bytes(4, "big") + body)

    def _note(self, event: str) -> None:
        with self._events.open("a") as events:
            events.write(f"{time.monotonic():.3f} {event}\n")


def main(path: Path, events: Path) -> None:
    with listen_unix(path) as listener:
        while True:
            accepted, _ = listener.accept()
            threading.Thread(target=Connection(accepted, events).run, daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
