"""Frames from a helper that sends nonsense, half of something, or nothing more."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from tie.api.job.v1 import job_pb2
from tie.cloud_app import wire
from tie.cloud_app.wire import JobChannel
from tie.contracts.errors import DeadlinePassed, PeerError, PeerGone
from tie.contracts.limits import MAX_FRAME_BYTES


@pytest.fixture
def pair() -> Iterator[tuple[JobChannel, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield JobChannel(ours), theirs


@pytest.mark.parametrize(
    ("sent", "fault"),
    [
        (b"\x00\x00\x00\x00", "a frame of 0 bytes"),
        ((MAX_FRAME_BYTES + 1).to_bytes(4, "big"), "the limit is"),
        (b"\xff\xff\xff\xff", "the limit is"),
        (b"\x00\x00\x00\x02\xff\xff", "cannot be parsed"),
        (b"\x00\x00\x00\x02\x78\x01", "no known kind"),
        (b"\x00\x00", "inside a frame"),
        (b"\x00\x00\x00\x05\x0a", "inside a frame"),
        (b"\x00\x00\x00\x05", "inside a frame"),
    ],
)
def test_what_is_no_frame_is_refused(pair: tuple[JobChannel, socket.socket], sent: bytes, fault: str) -> None:
    channel, helper = pair
    helper.sendall(sent)
    helper.shutdown(socket.SHUT_WR)
    with pytest.raises(PeerError, match=fault):
        channel.receive()


def test_the_end_between_two_frames_is_an_end(pair: tuple[JobChannel, socket.socket]) -> None:
    channel, helper = pair
    helper.shutdown(socket.SHUT_WR)
    assert channel.receive() is None


def test_a_frame_that_does_not_go_on_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FRAME_TIMEOUT_S", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = JobChannel(ours)
        theirs.sendall(b"\x00\x00\x00\x05")
        with pytest.raises(DeadlinePassed):
            channel.receive()


def test_a_helper_that_takes_nothing_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "FRAME_TIMEOUT_S", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(DeadlinePassed):
        _send_much(JobChannel(ours))


def test_a_helper_that_is_gone_takes_nothing(pair: tuple[JobChannel, socket.socket]) -> None:
    channel, helper = pair
    helper.close()
    with pytest.raises(PeerGone):
        _send_much(channel)


def test_frames_of_any_size_up_to_the_limit_pass_both_ways(pair: tuple[JobChannel, socket.socket]) -> None:
    channel, helper = pair
    frame = job_pb2.JobFrame(response_chunk=job_pb2.ResponseChunk(data=bytes(1000)))
    channel.send(frame)
    sent = helper.recv(4096)
    assert int.from_bytes(sent[:4], "big") == len(sent) - 4
    assert job_pb2.JobFrame.FromString(sent[4:]) == frame
    helper.sendall(sent[:3])
    helper.sendall(sent[3:] + sent)
    assert channel.receive() == channel.receive() == frame


def test_a_wait_tells_who_may_be_read(pair: tuple[JobChannel, socket.socket]) -> None:
    channel, helper = pair
    mine, other = socket.socketpair()
    with mine, other:
        assert channel.wait(0.0, mine) is None
        other.close()
        assert channel.wait(1.0, mine) is mine
        helper.sendall(b"x")
        assert channel.wait(1.0) is channel


def _send_much(channel: JobChannel) -> None:
    for _ in range(64):
        channel.send(job_pb2.JobFrame(response_chunk=job_pb2.ResponseChunk(data=bytes(100_000))))
