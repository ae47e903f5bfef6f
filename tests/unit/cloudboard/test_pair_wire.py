"""The private wire between cloudboardd and a helper."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tie.cloudboard import pair_wire, statuses
from tie.cloudboard.pair_wire import Begin, Kind, Refused
from tie.contracts.errors import PeerError, PeerGone


def read(data: bytes) -> tuple[Kind, bytes]:
    async def scenario() -> tuple[Kind, bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(data)
        reader.feed_eof()
        return await pair_wire.read_frame(reader)

    return asyncio.run(scenario())


@pytest.mark.parametrize("cut", [0, 1, 4, 5, 7])
def test_a_socket_that_ends_inside_a_frame_is_a_peer_that_is_gone(cut: int) -> None:
    with pytest.raises(PeerGone):
        read(pair_wire.encode(Kind.RESPONSE, b"abc")[:cut])


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(PeerError, match="unknown kind 99"):
        read(b"\0\0\0\0\x63")


def test_a_length_past_the_limit_is_refused_before_it_is_read() -> None:
    with pytest.raises(PeerError, match=str(pair_wire.MAX_BODY_BYTES)):
        read((pair_wire.MAX_BODY_BYTES + 1).to_bytes(4, "big") + b"\x06")


def test_a_short_begin_is_refused() -> None:
    with pytest.raises(PeerError, match="19 bytes"):
        Begin.decode(bytes(19))


@given(st.sampled_from(list(Kind)), st.binary(max_size=100))
def test_frames_round_trip(kind: Kind, body: bytes) -> None:
    assert read(pair_wire.encode(kind, body)) == (kind, body)


@given(st.binary(min_size=16, max_size=16), st.integers(0, (1 << 32) - 1), st.binary(max_size=50))
def test_begin_round_trips(job_id: bytes, deadline_ms: int, parameters: bytes) -> None:
    begin = Begin(job_id, deadline_ms, parameters)
    assert Begin.decode(begin.encode()) == begin


def test_a_refusal_keeps_its_status_and_an_unknown_one_becomes_internal() -> None:
    refused = Refused.decode(Refused("INVALID_ARGUMENT", "request chunk 0 does not open").encode())
    assert (statuses.code_of(refused).name, str(refused)) == ("INVALID_ARGUMENT", "request chunk 0 does not open")
    assert statuses.code_of(Refused.decode(b"\xffNONSENSE")).name == "INTERNAL"
