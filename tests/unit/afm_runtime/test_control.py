"""The control socket: what peers may do wrong, and that every number of it is real."""

from __future__ import annotations

import dataclasses
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.engine_harness import Harness
from doubles.scripted_engine import ECHO, RAISES

from tie.afm_runtime.control import MAX_CONNECTIONS, ControlServer
from tie.afm_runtime.meters import Meters, read_metrics
from tie.api.afm_control.v1 import afm_control_pb2
from tie.clients.runtime_control import RuntimeControl
from tie.contracts.errors import NotReady, PeerGone
from tie.servicekit import peers

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    metrics = afm_control_pb2.Metrics(steps=3)
    status = afm_control_pb2.StatusResponse(bundle_identity=bytes(32), metrics=metrics)
    answer = afm_control_pb2.Response(status=status)
    server = ControlServer(tmp_path / "c.sock", lambda request: answer if request.HasField("status") else None)
    thread = threading.Thread(target=server.run)
    thread.start()
    yield tmp_path / "c.sock"
    server.stop()
    thread.join(5)
    assert not thread.is_alive()


def raw(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(5)
    connection.connect(str(path))
    return connection


def ask_without_end(connection: socket.socket) -> None:
    request = afm_control_pb2.Request(status=afm_control_pb2.StatusRequest()).SerializeToString()
    for _ in range(100_000):
        connection.send(request)


@pytest.mark.parametrize("message", [b"x", b"\xff" * 3000, b"\0" * 140_000, b"\x2a\0"])
def test_a_peer_that_makes_no_sense_loses_its_connection_and_no_other(path: Path, message: bytes) -> None:
    with RuntimeControl.connect(path, 5) as honest, raw(path) as hostile:
        hostile.send(message)
        assert hostile.recv(10) == b""
        assert honest.status().metrics.steps == 3


def test_a_peer_that_asks_and_does_not_read_loses_its_connection(path: Path) -> None:
    with raw(path) as greedy, RuntimeControl.connect(path, 5) as honest:
        with pytest.raises(OSError, match=r"reset|[Bb]roken"):
            ask_without_end(greedy)
        assert honest.status().metrics.steps == 3


def test_there_is_room_for_so_many(path: Path) -> None:
    held = [RuntimeControl.connect(path, 5) for _ in range(MAX_CONNECTIONS)]
    assert [control.status().metrics.steps for control in held] == [3] * MAX_CONNECTIONS
    with RuntimeControl.connect(path, 5) as late, pytest.raises(PeerGone):
        late.status()
    for control in held:
        control.close()


def test_another_uid_is_told_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "credentials", lambda _: peers.Peer(1, 4242, 4242))
    with RuntimeControl.connect(path, 5) as control, pytest.raises(PeerGone):
        control.status()


def test_no_runtime(tmp_path: Path) -> None:
    with pytest.raises(NotReady, match="no runtime listens for control: No such file"):
        RuntimeControl.connect(tmp_path / "none.sock", 1)


def test_every_number_is_documented_and_none_else() -> None:
    documented = re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text("utf-8"), re.MULTILINE)
    assert documented == [field.name for field in afm_control_pb2.Metrics.DESCRIPTOR.fields]


def test_every_number_has_a_source() -> None:
    """Filled with ones, nothing of the message is left out."""
    meters = Meters(**{field.name: 1 for field in dataclasses.fields(Meters)})
    harness = Harness()
    harness.scheduler.preempted = harness.scheduler.shared_tokens = 1
    metrics = read_metrics(meters, harness.scheduler, harness.pool)
    empty = {field.name for field in metrics.DESCRIPTOR.fields} - {field.name for field, _ in metrics.ListFields()}
    assert empty == {"queued_interactive", "queued_background", "running"}


def test_the_engine_counts_what_it_does() -> None:
    harness = Harness()
    meters = harness.meters
    harness.ask([ECHO, 5, 6])
    harness.ask([RAISES])
    cancelled = harness.submit([ECHO, 5, 6])
    harness.submit([ECHO] * 9, choices=2)
    harness.engine.abort(cancelled.request)
    harness.run()
    assert (meters.requests_accepted, meters.requests_finished) == (4, 2)
    assert (meters.requests_failed, meters.requests_cancelled, meters.steps_failed) == (1, 1, 1)
    assert harness.scheduler.shared_tokens == 8
    assert meters.rows_most == 2
    assert meters.rows >= meters.steps > 0
    assert meters.plan_s > 0
    assert meters.deliver_s > 0
