"""Length framing inside the chunks: one request message; uuid, messages and one summary in a response."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tie.api.job.v1 import job_pb2
from tie.contracts.limits import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES
from tie.envelope.framing import Outcome, ResponseParser, frame, summary_frame, unframe_request
from tie.envelope.refusal import EnvelopeRefused

UUID = bytes(range(16))


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"\0\0\0\x02a", b"\0\0\0\x01ab", frame(b"a") + frame(b"b")])
def test_a_request_that_is_not_exactly_one_frame_is_refused(data: bytes) -> None:
    with pytest.raises(EnvelopeRefused, match="request"):
        unframe_request(data)


def test_a_request_frame_past_the_limit_is_refused_with_the_limit() -> None:
    with pytest.raises(EnvelopeRefused, match=str(MAX_REQUEST_BYTES)):
        unframe_request((MAX_REQUEST_BYTES + 1).to_bytes(4, "big"))


def test_a_response_frame_past_the_limit_is_refused() -> None:
    with pytest.raises(EnvelopeRefused, match=str(MAX_MESSAGE_BYTES)):
        ResponseParser().feed(UUID + (MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"), False)


def test_a_summary_before_the_uuid_is_refused() -> None:
    with pytest.raises(EnvelopeRefused, match="inside its uuid"):
        ResponseParser().feed(summary_frame(Outcome.OK), True)


def test_a_summary_inside_a_message_is_refused() -> None:
    parser = ResponseParser()
    parser.feed(UUID + frame(b"abc")[:5], False)
    with pytest.raises(EnvelopeRefused, match="or a message"):
        parser.feed(summary_frame(Outcome.OK), True)


@pytest.mark.parametrize(
    "final",
    [
        b"",
        summary_frame(Outcome.OK) + b"\0",
        frame(b"a") + summary_frame(Outcome.OK),
        frame(b"\xff"),
        frame(job_pb2.EndJob().SerializeToString()),
        frame(b"\x08\x63"),
    ],
)
def test_a_final_chunk_that_is_not_one_known_summary_is_refused(final: bytes) -> None:
    parser = ResponseParser()
    parser.feed(UUID, False)
    with pytest.raises(EnvelopeRefused, match=r"final chunk|summary"):
        parser.feed(final, True)
    assert parser.outcome is None


def test_every_outcome_has_a_summary_of_the_same_size() -> None:
    assert len({len(summary_frame(outcome)) for outcome in Outcome}) == 1


def test_outcomes_are_those_of_the_job_contract() -> None:
    assert {outcome.value for outcome in Outcome} == set(job_pb2.Outcome.values()) - {job_pb2.OUTCOME_UNSPECIFIED}


@given(st.binary(max_size=200))
def test_a_request_round_trips(message: bytes) -> None:
    assert unframe_request(frame(message)) == message


@given(st.lists(st.binary(max_size=30), max_size=6), st.data())
def test_messages_come_out_however_they_were_cut(messages: list[bytes], data: st.DataObject) -> None:
    stream = UUID + b"".join(map(frame, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    parser, found = ResponseParser(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += parser.feed(stream[start:end], False)
    parser.feed(summary_frame(Outcome.INVALID_REQUEST), True)
    assert (parser.uuid, found, parser.outcome) == (UUID, messages, Outcome.INVALID_REQUEST)
