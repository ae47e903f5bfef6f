"""When the node is ready, busy or in error; and that the lease is renewed, and given up, on a real socket."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.api.cloudboard.v1 import cloudboard_pb2_grpc
from tie.clients.node_state import ActiveWorkload, NodeStateClient
from tie.contracts.errors import NotReady
from tie.contracts.paths import RunPaths
from tie.node import lease, rundir
from tie.node.lease import RuntimeWatch, Verdict
from tie.servicekit import logs

IDENTITY = bytes(range(32))
WORKLOAD = ActiveWorkload("m", "1", IDENTITY, 8, 8)


@pytest.fixture(autouse=True)
def quiet() -> None:
    logs.configure("lease", "error")


class FakeLink:
    """A held connection; the test ends it from the other side."""

    def __init__(self, identity: bytes = IDENTITY) -> None:
        self.bundle_identity = identity
        self._ours, self.runtime = socket.socketpair()
        self.is_closed = False

    def fileno(self) -> int:
        return self._ours.fileno()

    def wait_gone(self, timeout_s: float) -> bool:
        self._ours.settimeout(timeout_s or None)
        try:
            return self._ours.recv(1, socket.MSG_PEEK | (0 if timeout_s else socket.MSG_DONTWAIT)) == b""
        except (BlockingIOError, TimeoutError):
            return False

    def close(self) -> None:
        self.is_closed = True
        self._ours.close()
        self.runtime.close()


@dataclass
class Runtime:
    """What the watch sees."""

    is_there: bool = True
    is_server_ready: bool = True
    identity: bytes = IDENTITY
    now: float = 100.0
    links: list[FakeLink] = field(default_factory=list)

    def connect(self) -> FakeLink:
        if not self.is_there:
            raise NotReady("no runtime listens: refused")
        self.links.append(FakeLink(self.identity))
        return self.links[-1]


@pytest.fixture
def runtime() -> Iterator[Runtime]:
    made = Runtime()
    yield made
    for link in made.links:
        link.close()


@pytest.fixture
def watch(runtime: Runtime) -> RuntimeWatch:
    return RuntimeWatch(runtime.connect, lambda: runtime.is_server_ready, IDENTITY, lambda: runtime.now)


def test_no_runtime_is_busy_at_first_and_an_error_when_it_stays_away(runtime: Runtime, watch: RuntimeWatch) -> None:
    runtime.is_there = False
    assert watch.check() is Verdict.BUSY
    assert "no runtime listens" in watch.reason
    runtime.now += lease.BUSY_BOUND_S - 1
    assert watch.check() is Verdict.BUSY
    runtime.now += 2
    assert watch.check() is Verdict.ERROR
    runtime.is_there = True
    assert watch.check() is Verdict.READY
    runtime.is_there = False
    runtime.links[-1].runtime.close()
    assert watch.check() is Verdict.BUSY  # the bound is counted anew


def test_a_server_that_is_not_ready_is_never_a_ready_node(runtime: Runtime, watch: RuntimeWatch) -> None:
    runtime.is_server_ready = False
    assert watch.check() is Verdict.BUSY
    assert watch.reason == "triton is not ready"


def test_a_runtime_that_serves_another_bundle_is_an_error_at_once(runtime: Runtime, watch: RuntimeWatch) -> None:
    runtime.identity = bytes(32)
    assert watch.check() is Verdict.ERROR
    assert "another bundle" in watch.reason


def test_one_link_is_held_and_made_anew_when_it_ends(runtime: Runtime, watch: RuntimeWatch) -> None:
    assert [watch.check() for _ in range(3)] == [Verdict.READY] * 3
    assert len(runtime.links) == 1
    runtime.links[0].runtime.close()
    assert watch.check() is Verdict.READY
    assert len(runtime.links) == 2
    assert runtime.links[0].is_closed


class StateServer(cloudboard_pb2_grpc.NodeStateServicer):
    def __init__(self) -> None:
        self.published: list[pb.PublishStateRequest] = []
        self.arrived = threading.Condition()

    def PublishState(self, request: Any, context: Any) -> pb.PublishStateResponse:  # noqa: N802
        with self.arrived:
            self.published.append(request)
            self.arrived.notify_all()
        return pb.PublishStateResponse(in_flight=3)

    def wait_for(self, holds: Callable[[list[pb.PublishStateRequest]], bool]) -> None:
        with self.arrived:
            assert self.arrived.wait_for(lambda: holds(self.published), 10)


@pytest.fixture
def state(paths: RunPaths) -> Iterator[StateServer]:
    rundir.prepare(paths)
    server, servicer = grpc.server(ThreadPoolExecutor(2)), StateServer()
    cloudboard_pb2_grpc.add_NodeStateServicer_to_server(servicer, server)
    server.add_insecure_port(f"unix:{paths.node_state_socket}")
    server.start()
    yield servicer
    server.stop(0).wait(5)


def test_without_a_cloudboardd_publishing_says_so(paths: RunPaths) -> None:
    with NodeStateClient(paths.node_state_socket) as client, pytest.raises(NotReady, match="cloudboardd"):
        client.publish_ready(WORKLOAD, 5000, 1)


def test_a_lease_longer_than_the_contract_allows_is_our_mistake(paths: RunPaths) -> None:
    with NodeStateClient(paths.node_state_socket) as client, pytest.raises(AssertionError):
        client.publish_ready(WORKLOAD, 5001, 1)


def test_ready_is_renewed_lost_with_the_runtime_and_given_up_at_the_end(
    paths: RunPaths, state: StateServer, runtime: Runtime, watch: RuntimeWatch
) -> None:
    stop, asked = socket.socketpair()
    with stop, asked, NodeStateClient(paths.node_state_socket) as client:
        thread = threading.Thread(target=lease.renew, args=(watch, client, WORKLOAD, asked))
        thread.start()
        state.wait_for(lambda seen: len(seen) >= 2)
        runtime.is_there = False
        runtime.links[-1].runtime.close()
        state.wait_for(lambda seen: seen[-1].state == pb.STATE_BUSY)
        runtime.is_there = True
        state.wait_for(lambda seen: seen[-1].state == pb.STATE_READY)
        stop.send(b"!")
        thread.join(10)
    first, last = state.published[0], state.published[-1]
    assert (first.state, last.state) == (pb.STATE_READY, pb.STATE_BUSY)
    assert 0 < first.lease_ms <= 5000
    assert (first.model, first.release, first.bundle_identity, first.max_batch_size) == ("m", "1", IDENTITY, 8)
