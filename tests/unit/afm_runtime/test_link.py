"""The runtime's socket, and its client, on a real SOCK_SEQPACKET."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tie.afm_runtime.link import LinkServer
from tie.afm_runtime.tickets import NoTicket, Tickets
from tie.api.runtime_link.v1 import runtime_link_pb2
from tie.clients.runtime_link import RuntimeLink
from tie.contracts.errors import NotReady, PeerGone
from tie.servicekit import peers

IDENTITY = bytes(range(32))


class Served:
    def __init__(self, path: Path, most: int = 4) -> None:
        self.path = path
        self.tickets = Tickets()
        self.server = LinkServer(
            path, self.tickets, bundle_identity=IDENTITY, context_length=4096, max_connections=most
        )
        self.thread = threading.Thread(target=self.server.run)
        self.thread.start()

    def connect(self) -> RuntimeLink:
        return RuntimeLink.connect(self.path, 5)

    def raw(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.settimeout(5)
        connection.connect(str(self.path))
        return connection


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    running = Served(tmp_path / "r.sock")
    yield running
    if running.thread.is_alive():
        running.server.stop()
    running.thread.join(5)
    assert not running.thread.is_alive()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.001)


@pytest.mark.parametrize(
    "message", [b"x", b"\xff" * 4000, b"\0" * 4097, runtime_link_pb2.ToRuntime().SerializeToString() or b"\x1a\0"]
)
def test_a_peer_that_breaks_the_protocol_loses_its_connection_and_no_other(served: Served, message: bytes) -> None:
    with served.connect() as honest, served.raw() as hostile:
        welcome = runtime_link_pb2.FromRuntime.FromString(hostile.recv(4096)).welcome
        hostile.send(message)
        assert hostile.recv(10) == b""
        with pytest.raises(NoTicket):
            served.tickets.claim(welcome.ticket)
        assert not honest.wait_gone(0)
        served.tickets.claim(honest.ticket)


def test_descriptors_sent_along_are_not_kept(served: Served) -> None:
    before = len(os.listdir("/proc/self/fd"))
    abort = runtime_link_pb2.ToRuntime(abort=runtime_link_pb2.Abort()).SerializeToString()
    with served.raw() as hostile:
        hostile.recv(4096)
        socket.send_fds(hostile, [abort], [0, 1, 2])
        assert hostile.recv(10) == b""
    until(lambda: served.server.connections == 0)
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)


def test_a_second_abort_ends_the_connection(served: Served) -> None:
    with served.connect() as link:
        link.abort()
        link.abort()
        assert link.wait_gone(5)


def test_more_connections_than_there_is_room_for_are_ended_at_once(served: Served) -> None:
    held = [served.connect() for _ in range(4)]
    with pytest.raises(PeerGone):
        served.connect()
    held.pop().close()
    until(lambda: served.server.connections == 3)
    held.append(served.connect())
    for link in held:
        link.close()


def test_another_uid_is_not_welcomed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "credentials", lambda _: peers.Peer(1, os.geteuid() + 1, 0))
    with served.raw() as stranger:
        assert stranger.recv(10) == b""


def test_nothing_listens(tmp_path: Path) -> None:
    with pytest.raises(NotReady):
        RuntimeLink.connect(tmp_path / "absent", 1)


def test_the_end_of_a_connection_voids_its_ticket_and_aborts_its_request(served: Served) -> None:
    aborted = threading.Event()
    link = served.connect()
    served.tickets.bind(served.tickets.claim(link.ticket), aborted.set)
    link.close()
    assert aborted.wait(5)


def test_an_abort_aborts_and_keeps_the_connection(served: Served) -> None:
    aborted = threading.Event()
    with served.connect() as link:
        served.tickets.bind(served.tickets.claim(link.ticket), aborted.set)
        link.abort()
        assert aborted.wait(5)
        assert not link.wait_gone(0)


def test_the_end_of_the_runtime_is_seen_by_who_watches_and_who_waits(served: Served) -> None:
    gone = threading.Event()
    with served.connect() as watched, served.connect() as waited:
        watched.watch(gone.set)
        assert not waited.wait_gone(0)
        served.server.stop()
        assert gone.wait(1)
        assert waited.wait_gone(1)


def test_closing_a_watched_link_is_not_its_end(served: Served) -> None:
    gone = threading.Event()
    link = served.connect()
    link.watch(gone.set)
    link.close()
    assert not gone.is_set()


def test_the_welcome_says_what_is_served_and_by_whom(served: Served) -> None:
    with served.connect() as link, served.connect() as other:
        assert (link.bundle_identity, link.context_length) == (IDENTITY, 4096)
        assert link.ticket != other.ticket
        assert link.runtime.pid == os.getpid()


def test_the_socket_is_for_owner_and_group(served: Served) -> None:
    assert served.path.stat().st_mode & 0o777 == 0o660
