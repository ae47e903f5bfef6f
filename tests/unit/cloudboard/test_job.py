"""One helper's life over real sockets: the test is cloudboardd on one side and the app on the other."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import cast

import pytest

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.api.job.v1 import job_pb2
from tie.cloudboard import pair_wire
from tie.cloudboard.helper.job import Job
from tie.cloudboard.helper.links import AppLink, PairLink
from tie.cloudboard.helper.opening import Opening
from tie.cloudboard.pair_wire import Begin, Kind, Refused
from tie.contracts.errors import DeadlinePassed, PeerError, PeerGone, TieError
from tie.contracts.limits import MAX_FRAME_BYTES
from tie.envelope import node
from tie.envelope.device import DeviceSession, seal_request
from tie.envelope.framing import Outcome, frame
from tie.envelope.suites import X25519_SHA256_AES128GCM

KEM = X25519_SHA256_AES128GCM.kem
PRIVATE, PUBLIC = KEM.generate()
BINDING_KEY = bytes(range(32))


class FakeOpening:
    """Key protection in the same process; `refusal` is what it answers instead."""

    binding_key = BINDING_KEY
    refusal: Refused | None = None

    def rehearse(self) -> None: ...

    def open(self, job_id: bytes, wrapped: bytes) -> node.NodeSession:
        assert job_id == bytes(16)
        if self.refusal is not None:
            raise self.refusal
        return node.open_request(wrapped, KEM.decapsulate(PRIVATE, wrapped[7:39]))


class Bench:
    """The helper in a thread, and its two peers here."""

    def __init__(self) -> None:
        self.cloudboardd, pair = socket.socketpair()
        self.app, app = socket.socketpair()
        for peer in (self.cloudboardd, self.app):
            peer.settimeout(10)
        self.opening = FakeOpening()
        self.job = Job(PairLink(pair), AppLink(app), cast(Opening, self.opening))
        self._helper_ends = (pair, app)
        self.device: DeviceSession = seal_request(PUBLIC, 1)
        self.failure: TieError | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def start(self, warmup_s: float = 10) -> None:
        self.warmup_s = warmup_s
        self.thread.start()

    def _run(self) -> None:
        try:
            self.job.warm_up(self.warmup_s)
            self.job.serve()
        except TieError as error:
            self.failure = error
        finally:
            for end in self._helper_ends:
                end.close()

    def warm(self) -> None:
        assert self.from_helper().WhichOneof("frame") == "warmup"
        self.to_helper(warmup_done=job_pb2.WarmupDone())
        assert self.response() == (Kind.WARM, BINDING_KEY)

    def begin(self, deadline_ms: int = 10_000) -> None:
        parameters = pb.Parameters(decryption_key=pb.DecryptionKey(encrypted_payload=self.device.wrapped_key))
        self.tell(Kind.BEGIN, Begin(bytes(16), deadline_ms, parameters.SerializeToString()).encode())

    def upload(self, payload: bytes) -> None:
        self.tell(Kind.FINAL_CHUNK, self.device.seal_chunk(frame(payload), True))

    def dispatched(self) -> job_pb2.Parameters:
        parameters = self.from_helper().parameters
        assert self.from_helper().WhichOneof("frame") == "request_chunk"
        return parameters

    def tell(self, kind: Kind, body: bytes = b"") -> None:
        self.cloudboardd.sendall(pair_wire.encode(kind, body))

    def response(self) -> tuple[Kind, bytes]:
        kind, length = pair_wire.decode_header(_exactly(self.cloudboardd, pair_wire.HEADER_BYTES))
        return kind, _exactly(self.cloudboardd, length)

    def answer(self) -> list[bytes]:
        """Every message until the end; the device then has the outcome, if there is one."""
        messages: list[bytes] = []
        while self.device.outcome is None:
            kind, body = self.response()
            chunk = pb.InvokeWorkloadResponse.FromString(body).response_chunk
            assert chunk.is_final == (kind is Kind.FINAL_RESPONSE)
            messages += self.device.open_response_chunk(chunk.encrypted_payload, chunk.is_final)
        return messages

    def refusal(self) -> Refused:
        kind, body = self.response()
        assert kind is Kind.REFUSED
        return Refused.decode(body)

    def to_helper(self, **fields: object) -> None:
        body = job_pb2.JobFrame(**fields).SerializeToString()  # type: ignore[arg-type]
        self.app.sendall(len(body).to_bytes(4, "big") + body)

    def from_helper(self) -> job_pb2.JobFrame:
        length = int.from_bytes(_exactly(self.app, 4), "big")
        return job_pb2.JobFrame.FromString(_exactly(self.app, length))

    def torn_down(self) -> None:
        assert self.from_helper().WhichOneof("frame") == "teardown"
        self.app.close()
        self.cloudboardd.close()
        self.thread.join(10)
        assert not self.thread.is_alive()


def _exactly(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        piece = connection.recv(length - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.cloudboardd.close()
    made.app.close()
    made.thread.join(10)


@pytest.fixture
def asked(bench: Bench) -> Bench:
    """A bench whose app has the request."""
    bench.start()
    bench.warm()
    bench.begin()
    bench.upload(b"question")
    bench.dispatched()
    return bench


def test_an_app_that_does_not_warm_up_ends_the_helper(bench: Bench) -> None:
    bench.start(warmup_s=0.05)
    bench.thread.join(10)
    assert isinstance(bench.failure, DeadlinePassed)


def test_an_app_that_answers_before_it_is_warm_ends_the_helper(bench: Bench) -> None:
    bench.start()
    bench.to_helper(response_chunk=job_pb2.ResponseChunk(data=b"x"))
    bench.thread.join(10)
    assert isinstance(bench.failure, PeerError)


def test_an_app_that_dies_while_the_pair_waits_ends_the_helper(bench: Bench) -> None:
    bench.start()
    bench.warm()
    bench.app.close()
    bench.thread.join(10)
    assert isinstance(bench.failure, PeerGone)


def test_a_pair_that_is_not_needed_tears_its_app_down(bench: Bench) -> None:
    bench.start()
    bench.warm()
    bench.cloudboardd.close()
    bench.torn_down()
    assert bench.failure is None


@pytest.mark.parametrize("status", ["INVALID_ARGUMENT", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED"])
def test_what_key_protection_refuses_is_told_and_nothing_is_dispatched(bench: Bench, status: str) -> None:
    bench.opening.refusal = Refused(status, "no")
    bench.start()
    bench.warm()
    bench.begin()
    assert bench.refusal().grpc_status == status
    bench.torn_down()


def test_an_altered_chunk_is_refused_and_nothing_is_dispatched(bench: Bench) -> None:
    bench.start()
    bench.warm()
    bench.begin()
    sealed = bytearray(bench.device.seal_chunk(frame(b"question"), True))
    sealed[-1] ^= 1
    bench.tell(Kind.FINAL_CHUNK, bytes(sealed))
    refusal = bench.refusal()
    assert (refusal.grpc_status, str(refusal)[:15]) == ("INVALID_ARGUMENT", "request chunk 0")
    bench.torn_down()


def test_a_request_that_opens_but_is_misframed_is_answered_inside_the_envelope(bench: Bench) -> None:
    bench.start()
    bench.warm()
    bench.begin()
    bench.tell(Kind.FINAL_CHUNK, bench.device.seal_chunk(b"\0\0\0\x09short", True))
    assert bench.answer() == []
    assert bench.device.outcome is Outcome.INVALID_REQUEST


def test_nothing_is_dispatched_before_the_final_chunk(bench: Bench) -> None:
    bench.start()
    bench.warm()
    bench.begin()
    bench.tell(Kind.CHUNK, bench.device.seal_chunk(frame(b"question"), False))
    bench.app.settimeout(0.1)
    with pytest.raises(TimeoutError):
        bench.app.recv(1)
    bench.app.settimeout(10)
    bench.tell(Kind.FINAL_CHUNK, bench.device.seal_chunk(b"", True))
    bench.dispatched()


def test_an_app_that_ends_before_end_job_is_an_internal_error_and_what_was_sent_stands(asked: Bench) -> None:
    asked.to_helper(response_chunk=job_pb2.ResponseChunk(data=b"half"))
    asked.app.close()
    assert asked.answer() == [b"half"]
    assert asked.device.outcome is Outcome.INTERNAL_ERROR


def test_an_app_that_dies_during_the_upload_is_an_internal_error(bench: Bench) -> None:
    bench.start()
    bench.warm()
    bench.begin()
    bench.tell(Kind.CHUNK, bench.device.seal_chunk(b"\0\0", False))
    bench.app.close()
    assert bench.answer() == []
    assert bench.device.outcome is Outcome.INTERNAL_ERROR


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x00\x00\x03\xff\xff\xff",
        (MAX_FRAME_BYTES + 1).to_bytes(4, "big"),
        b"\x00\x00\x00\x00",
        b"\x00\x00\x00\x02\x0a\x00",
        b"\x00\x00\x00\x02\x3a\x00",
    ],
    ids=["not a frame", "too long", "empty", "a helper's own frame", "unspecified outcome"],
)
def test_an_app_that_sends_what_it_must_not_is_an_internal_error(asked: Bench, sent: bytes) -> None:
    asked.app.sendall(sent)
    assert asked.answer() == []
    assert asked.device.outcome is Outcome.INTERNAL_ERROR


def test_a_deadline_ends_a_silent_app(bench: Bench) -> None:
    bench.start()
    bench.warm()
    bench.begin(deadline_ms=300)
    bench.upload(b"question")
    assert bench.dispatched().deadline_ms <= 300
    assert bench.answer() == []
    assert bench.device.outcome is Outcome.INTERNAL_ERROR


def test_terminate_tears_the_app_down_without_a_summary(asked: Bench) -> None:
    asked.tell(Kind.TERMINATE)
    asked.torn_down()
    assert asked.device.outcome is None


def test_a_client_that_is_gone_tears_the_app_down(asked: Bench) -> None:
    asked.cloudboardd.close()
    asked.torn_down()


def test_a_client_that_is_gone_while_the_app_floods_tears_the_app_down(asked: Bench) -> None:
    asked.to_helper(response_chunk=job_pb2.ResponseChunk(data=b"x"))
    asked.cloudboardd.close()
    asked.torn_down()


def test_a_chunk_after_the_final_one_ends_the_request(asked: Bench) -> None:
    asked.tell(Kind.CHUNK, b"late")
    asked.torn_down()


@pytest.mark.parametrize("outcome", list(Outcome))
def test_the_outcome_is_the_app_s(asked: Bench, outcome: Outcome) -> None:
    asked.to_helper(response_chunk=job_pb2.ResponseChunk(data=b"one"))
    asked.to_helper(response_chunk=job_pb2.ResponseChunk(data=b"two"))
    asked.to_helper(end_job=job_pb2.EndJob(outcome=outcome.value))
    assert asked.answer() == [b"one", b"two"]
    assert asked.device.outcome is outcome
    assert len(asked.device.response_uuid or b"") == 16


def test_the_app_gets_the_derived_key_and_never_the_dek(bench: Bench) -> None:
    bench.start()
    bench.warm()
    bench.begin()
    bench.upload(b"question")
    parameters = bench.dispatched()
    session = FakeOpening().open(bytes(16), bench.device.wrapped_key)
    assert parameters.kv_request_key == session.kv_request_key
