"""Each refusal of the device's contract, over real processes. None ends cloudboardd: the next request succeeds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from doubles.device import Answer, Device, Stream, parameters, request_chunk, setup, terminate
from doubles.edge_node import EdgeNode, short_directory

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.contracts.limits import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES
from tie.envelope.device import seal_request
from tie.envelope.framing import Outcome

Code = grpc.StatusCode
Scenario = Callable[[EdgeNode], Awaitable[None]]


def on_node(scenario: Scenario, **settings: Any) -> None:
    """Runs the scenario, then asks the same node for an echo."""

    async def run() -> None:
        with short_directory() as directory:
            async with EdgeNode(Path(directory), **settings) as node:
                await scenario(node)
                await serves(node)

    asyncio.run(run())


async def serves(node: EdgeNode) -> None:
    answer = await node.device.ask(b"echo still here")
    assert (answer.status, answer.outcome, answer.messages) == (Code.OK, Outcome.OK, [b"still here"]), answer


async def ended(stream: Stream, code: grpc.StatusCode, about: str) -> Answer:
    answer = await stream.finish()
    assert (answer.status, answer.outcome) == (code, None), answer
    assert about in answer.details, answer
    return answer


async def sent(device: Device, *messages: bytes) -> Stream:
    """A call with these messages; what the server thinks of them shows at its end."""
    stream = device.open()
    try:
        for message in messages:
            await stream.send(message)
        await stream.done()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
        pass
    return stream


async def uploading(device: Device) -> Stream:
    """A call up to and with its Parameters."""
    key = await device.fetch()
    session = key.seal()
    stream = device.open(session)
    await stream.setup()
    await stream.send(parameters(session.wrapped_key, key.key_id))
    return stream


def test_malformed_and_misordered_messages() -> None:
    async def scenario(node: EdgeNode) -> None:
        device = node.device
        key = await device.fetch()

        def fresh() -> bytes:
            return parameters(key.seal().wrapped_key, key.key_id)

        chunk, empty = request_chunk(b"x", False), b""
        for messages, code, about in (
            ((b"\xff\xff\xff",), Code.INVALID_ARGUMENT, "message"),
            ((empty,), Code.INVALID_ARGUMENT, "none of the known kinds"),
            ((), Code.FAILED_PRECONDITION, "half_close came while the stream was opened"),
            ((fresh(),), Code.FAILED_PRECONDITION, "parameters came while the stream was opened"),
            ((chunk,), Code.FAILED_PRECONDITION, "chunk"),
            ((terminate(),), Code.FAILED_PRECONDITION, "terminate"),
            ((setup(), setup()), Code.FAILED_PRECONDITION, "setup came while the stream was set_up"),
            ((setup(), chunk), Code.FAILED_PRECONDITION, "chunk came while the stream was set_up"),
            ((setup(),), Code.FAILED_PRECONDITION, "half_close"),
            ((setup(), fresh(), fresh()), Code.FAILED_PRECONDITION, "parameters came while the stream was uploading"),
            ((setup(), fresh()), Code.FAILED_PRECONDITION, "half_close came while the stream was uploading"),
            ((setup(), fresh(), terminate(), terminate()), Code.FAILED_PRECONDITION, "terminate came while"),
        ):
            await ended(await sent(device, *messages), code, about)

    on_node(scenario)


def test_keys_that_are_unknown_malformed_or_seen_before() -> None:
    async def scenario(node: EdgeNode) -> None:
        device = node.device
        key = await device.fetch()
        good = key.seal().wrapped_key
        low_order = good[:7] + bytes(32) + good[39:]
        other_dek = good[:-1] + bytes([good[-1] ^ 1])
        other_number = seal_request(key.bundle.public_key, key.bundle.key_number ^ 1).wrapped_key
        for wrapped, key_id, code, about in (
            (good, bytes(32), Code.INVALID_ARGUMENT, "unknown or expired key"),
            (good[:-1], key.key_id, Code.INVALID_ARGUMENT, "70 bytes"),
            (good + b"\0", key.key_id, Code.INVALID_ARGUMENT, "72 bytes"),
            (good[:1] + b"\x64\x7a" + good[3:], key.key_id, Code.INVALID_ARGUMENT, "kem 0x647a"),
            (other_number, key.key_id, Code.INVALID_ARGUMENT, "key number"),
            (low_order, key.key_id, Code.INVALID_ARGUMENT, "enc cannot be opened"),
            (other_dek, key.key_id, Code.INVALID_ARGUMENT, "does not open"),
            # the wrapped key is another one, its enc is not: key protection has its own memory
            (good, key.key_id, Code.PERMISSION_DENIED, "presented before"),
        ):
            stream = await sent(device, setup(), parameters(wrapped, key_id), request_chunk(b"x" * 40, True))
            await ended(stream, code, about)
        session = key.seal()
        whole = [request_chunk(part.payload, part.is_final) for part in session.seal_message(b"echo once")]
        first = await sent(device, setup(), parameters(session.wrapped_key, key.key_id), *whole)
        first.session = session
        assert (await first.finish()).messages == [b"once"]
        replayed = await sent(device, setup(), parameters(session.wrapped_key, key.key_id), *whole)
        await ended(replayed, Code.PERMISSION_DENIED, "presented before: seal anew")
        assert node.events.read_text().count("dispatched") == 1

    on_node(scenario, pool_size=2)


def test_chunks_that_were_altered_reordered_truncated_or_added() -> None:
    async def scenario(node: EdgeNode) -> None:
        for tamper, code, about in (
            (lambda parts: [(flipped(parts[0][0]), False), *parts[1:]], Code.INVALID_ARGUMENT, "request chunk 0"),
            (lambda parts: [parts[0], parts[2], parts[1], parts[3]], Code.INVALID_ARGUMENT, "request chunk 1"),
            (lambda parts: [*parts[:3], (parts[3][0], False)], Code.INVALID_ARGUMENT, "request chunk 3"),
            (lambda parts: [parts[0], (parts[1][0], True)], Code.INVALID_ARGUMENT, "request chunk 1"),
            (lambda parts: parts[:2], Code.FAILED_PRECONDITION, "half_close"),
            (lambda parts: [*parts, parts[1]], Code.FAILED_PRECONDITION, "chunk came while the stream was answering"),
            (lambda parts: [*parts, parts[3]], Code.FAILED_PRECONDITION, "final_chunk came while"),
            (lambda parts: [(b"short", False), *parts[1:]], Code.INVALID_ARGUMENT, "request chunk 0 has 5 bytes"),
        ):
            stream = await uploading(node.device)
            assert stream.session is not None
            sealed = [(part.payload, part.is_final) for part in stream.session.seal_message(b"hang" + b"." * 96, 30)]
            assert len(sealed) == 4
            try:
                for payload, is_final in tamper(sealed):
                    await stream.send(request_chunk(payload, is_final))
                if about == "half_close":
                    await stream.done()
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass
            await ended(stream, code, about)

    on_node(scenario, pool_size=2)


def flipped(payload: bytes) -> bytes:
    return payload[:-1] + bytes([payload[-1] ^ 1])


def test_oversize_messages_and_requests() -> None:
    async def scenario(node: EdgeNode) -> None:
        device = node.device
        by_transport = await sent(device, setup(), request_chunk(bytes(MAX_MESSAGE_BYTES + (1 << 20)), False))
        await ended(by_transport, Code.RESOURCE_EXHAUSTED, "")
        stream = await uploading(device)
        await stream.send(request_chunk(bytes(MAX_MESSAGE_BYTES + 1), False))
        await ended(stream, Code.RESOURCE_EXHAUSTED, str(MAX_MESSAGE_BYTES))
        answer = await device.ask(b"size" + bytes(MAX_REQUEST_BYTES - 3), chunk_bytes=2 << 20)
        assert answer.status is Code.RESOURCE_EXHAUSTED, answer
        assert str(MAX_REQUEST_BYTES) in answer.details
        answer = await device.ask(b"size " + bytes(MAX_REQUEST_BYTES - 5), chunk_bytes=2 << 20)
        assert answer.messages == [str(MAX_REQUEST_BYTES).encode()]

    on_node(scenario)


def test_a_request_that_opens_to_something_else_is_answered_inside_the_envelope() -> None:
    async def scenario(node: EdgeNode) -> None:
        stream = await uploading(node.device)
        assert stream.session is not None
        await stream.send(request_chunk(stream.session.seal_chunk(b"\0\0\0\x63short", True), True))
        answer = await stream.finish()
        assert (answer.status, answer.outcome, answer.messages) == (Code.OK, Outcome.INVALID_REQUEST, [])
        assert (await node.device.ask(b"outcome 2")).outcome is Outcome.UNAUTHENTICATED
        await node.event("ended by teardown")

    on_node(scenario)


def test_over_capacity_is_refused_at_once_and_load_says_so() -> None:
    async def scenario(node: EdgeNode) -> None:
        busy = await node.device.begin(b"drip 50")
        while not await busy.read_one():
            pass
        async for level in node.device.loads():
            assert (level.max_batch_size, level.current_batch_size) == (1, 1)
            break
        refused = await sent(node.device, setup())
        await ended(refused, Code.RESOURCE_EXHAUSTED, "the limit is 1")
        await busy.send(terminate())
        assert (await busy.finish()).status is Code.CANCELLED
        async for level in node.device.loads():
            if level.current_batch_size == 0:
                break

    on_node(scenario, pool_size=1, max_pairs=1)


def test_idle_setups_hold_no_pair_and_are_capped() -> None:
    async def scenario(node: EdgeNode) -> None:
        idle = [node.device.open() for _ in range(4)]
        for stream in idle:
            await stream.setup()
        await serves(node)  # one pair warm, four idle setups
        one_more = node.device.open()
        await one_more.setup()
        await ended(await sent(node.device, setup()), Code.RESOURCE_EXHAUSTED, "5 streams are open, the limit is 5")
        for stream in (*idle, one_more):
            stream.call.cancel()

    on_node(scenario, pool_size=1, max_pairs=2, max_streams=5)


def test_every_phase_has_its_deadline() -> None:
    async def scenario(node: EdgeNode) -> None:
        device = node.device
        await ended(device.open(), Code.DEADLINE_EXCEEDED, "setup")
        stream = device.open()
        await stream.setup()
        await ended(stream, Code.DEADLINE_EXCEEDED, "parameters")
        await ended(await uploading(device), Code.DEADLINE_EXCEEDED, "final request chunk")
        silent = await device.begin(b"hang")
        await ended(silent, Code.DEADLINE_EXCEEDED, "next response chunk")
        await node.event("teardown")
        endless = await device.begin(b"drip 100")
        answer = await ended(endless, Code.DEADLINE_EXCEEDED, "the request to end")
        assert answer.messages

    limits = {"setup_timeout_s": 0.4, "upload_timeout_s": 0.5, "idle_timeout_s": 0.7, "request_timeout_s": 2}
    on_node(scenario, **limits)


def test_a_client_that_does_not_read_is_ended_and_its_app_told() -> None:
    async def scenario(node: EdgeNode) -> None:
        stream = await node.device.begin(b"flood")
        await node.event("ended")
        line = next(line for line in node.log("cloudboardd") if line["event"] == "request.ended")
        assert line["status"] == "DEADLINE_EXCEEDED"
        assert (await stream.finish()).status is Code.DEADLINE_EXCEEDED

    on_node(scenario, idle_timeout_s=0.5)


def test_terminate_before_parameters_and_a_client_that_vanishes() -> None:
    async def scenario(node: EdgeNode) -> None:
        stream = node.device.open()
        await stream.setup()
        await stream.send(terminate())
        await ended(stream, Code.CANCELLED, "terminated by the client")
        gone = await node.device.begin(b"drip 20")
        while not await gone.read_one():
            pass
        gone.call.cancel()
        await node.event("teardown")

    on_node(scenario)


def test_a_full_node_still_tells_what_it_is() -> None:
    async def scenario(node: EdgeNode) -> None:
        key = await node.device.fetch()
        assert key.bundle.kind == pb.ATTESTATION_KIND_DEVELOPMENT
        assert (key.bundle.model, key.bundle.release) == ("m", "1")
        assert await node.health() == 1
        check: Any = node.device.channel.unary_unary("/grpc.health.v1.Health/Check")
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await check(b"\x0a\x04none", timeout=5)
        assert refusal.value.code() is Code.NOT_FOUND

    on_node(scenario)
