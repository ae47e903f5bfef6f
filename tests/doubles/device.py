"""A device, small enough to misbehave in every way: builds on the envelope, speaks raw InvokeWorkload messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.api.cloudboard.v1 import cloudboard_pb2_grpc as rpc
from tie.envelope.device import DeviceSession, seal_request
from tie.envelope.framing import Outcome
from tie.envelope.suites import suite_of

LIMIT_S: Final = 15.0
INVOKE: Final = "/tie.api.cloudboard.v1.CloudBoard/InvokeWorkload"


@dataclass
class Answer:
    """What came back: messages in order, the outcome if the answer is whole, the gRPC status if there was one."""

    messages: list[bytes] = field(default_factory=list)
    outcome: Outcome | None = None
    status: grpc.StatusCode = grpc.StatusCode.OK
    details: str = ""


@dataclass(frozen=True)
class NodeKey:
    """What FetchAttestation said."""

    key_id: bytes
    bundle: pb.AttestationBundle
    response: pb.FetchAttestationResponse

    def seal(self) -> DeviceSession:
        suite = suite_of(self.bundle.kem, self.bundle.kdf, self.bundle.aead)
        return seal_request(self.bundle.public_key, self.bundle.key_number, suite)


class Stream:
    """One InvokeWorkload call, message by message."""

    def __init__(self, call: Any, session: DeviceSession | None) -> None:
        self.call, self.session = call, session
        self.answer = Answer()

    async def send(self, message: bytes) -> None:
        async with asyncio.timeout(LIMIT_S):
            await self.call.write(message)

    async def setup(self, wait_for_ack: bool = True) -> None:
        await self.send(setup())
        if wait_for_ack:
            async with asyncio.timeout(LIMIT_S):
                ack = await self.call.read()
            assert ack is not grpc.aio.EOF, "the stream ended before SetupAck"
            assert pb.InvokeWorkloadResponse.FromString(ack).HasField("setup_ack")

    async def done(self) -> None:
        await self.call.done_writing()

    async def read_one(self) -> list[bytes]:
        """Messages of the next response chunk; empty at the end."""
        async with asyncio.timeout(LIMIT_S):
            raw = await self.call.read()
        if raw is grpc.aio.EOF:
            return []
        response = pb.InvokeWorkloadResponse.FromString(raw)
        if not response.HasField("response_chunk"):
            return []
        assert self.session is not None
        chunk = response.response_chunk
        messages = self.session.open_response_chunk(chunk.encrypted_payload, chunk.is_final)
        self.answer.messages += messages
        self.answer.outcome = self.session.outcome
        return messages

    async def finish(self) -> Answer:
        """Reads to the end, whatever it is."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while (raw := await self.call.read()) is not grpc.aio.EOF:
                    chunk = pb.InvokeWorkloadResponse.FromString(raw).response_chunk
                    if self.session is not None and chunk.encrypted_payload:
                        opened = self.session.open_response_chunk(chunk.encrypted_payload, chunk.is_final)
                        self.answer.messages += opened
                        self.answer.outcome = self.session.outcome
        except grpc.aio.AioRpcError:
            pass  # the same as below
        self.answer.status = await self.call.code()
        self.answer.details = await self.call.details() or ""
        return self.answer


class Device:
    """A channel to one node."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.aio.insecure_channel(address, options=(("grpc.max_send_message_length", 64 << 20),))
        self.stub = rpc.CloudBoardStub(self.channel)

    async def close(self) -> None:
        await self.channel.close()

    async def fetch(self) -> NodeKey:
        response = await self.stub.FetchAttestation(pb.FetchAttestationRequest(), timeout=LIMIT_S)
        bundle = pb.AttestationBundle.FromString(response.attestation_bundle)
        return NodeKey(response.key_id, bundle, response)

    def open(self, session: DeviceSession | None = None) -> Stream:
        return Stream(self.channel.stream_stream(INVOKE)(timeout=60), session)

    async def ask(self, payload: bytes, chunk_bytes: int = 1 << 20) -> Answer:
        """One whole request, as a well-behaved client sends it."""
        key = await self.fetch()
        session = key.seal()
        stream = self.open(session)
        try:
            await stream.setup()
            await stream.send(parameters(session.wrapped_key, key.key_id))
            for part in session.seal_message(payload, chunk_bytes):
                await stream.send(request_chunk(part.payload, part.is_final))
            await stream.done()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, AssertionError):
            pass  # the status tells
        return await stream.finish()

    async def begin(self, payload: bytes) -> Stream:
        """One whole request sent; the caller reads the answer."""
        key = await self.fetch()
        session = key.seal()
        stream = self.open(session)
        await stream.setup()
        await stream.send(parameters(session.wrapped_key, key.key_id))
        for part in session.seal_message(payload):
            await stream.send(request_chunk(part.payload, part.is_final))
        return stream

    async def loads(self) -> AsyncIterator[pb.WatchLoadLevelResponse]:
        async for level in self.stub.WatchLoadLevel(pb.WatchLoadLevelRequest(), timeout=LIMIT_S):
            yield level


def setup() -> bytes:
    return pb.InvokeWorkloadRequest(setup=pb.Setup()).SerializeToString()


def parameters(wrapped_key: bytes, key_id: bytes, **changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "workload": pb.Workload(name="tie-cloud-app"),
        "decryption_key": pb.DecryptionKey(encrypted_payload=wrapped_key, key_id=key_id),
        "request_id": "trace-1",
    }
    return pb.InvokeWorkloadRequest(parameters=pb.Parameters(**(fields | changes))).SerializeToString()


def request_chunk(sealed: bytes, is_final: bool) -> bytes:
    chunk = pb.SealedChunk(encrypted_payload=sealed, is_final=is_final)
    return pb.InvokeWorkloadRequest(request_chunk=chunk).SerializeToString()


def terminate() -> bytes:
    return pb.InvokeWorkloadRequest(terminate=pb.Terminate()).SerializeToString()
