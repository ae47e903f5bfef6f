"""The asyncio client: the faults where it differs from the blocking one, and the same answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import grpc
import pytest
from doubles import fake_node
from doubles.fake_node import FakeNode, Outcome, delta, finish

from tie.api.inference.v1 import inference_pb2 as ipb
from tie.vre import AsyncClient, AttestationRefused, BadAnswer, CallFailed, Event, NodeUnreachable, Truncated

Test = Callable[[AsyncClient], Coroutine[Any, Any, None]]


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as serving:
        yield serving


def with_client(address: str, test: Test, *, allow: bool = True) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), AsyncClient(address, allow_development_attestation=allow) as client:
            await test(client)

    asyncio.run(run())


async def events_of(client: AsyncClient, **limits: Any) -> list[Event]:
    return [event async for event in client.ask("hi", **limits)]


def script(*steps: Any) -> fake_node.Script:
    return lambda _: iter(steps)


def test_nobody_listens() -> None:
    async def test(client: AsyncClient) -> None:
        with pytest.raises(NodeUnreachable):
            await events_of(client)
        with pytest.raises(NodeUnreachable):
            await client.load()

    with_client("127.0.0.1:1", test)


def test_a_development_attestation_is_refused_unless_allowed(node: FakeNode) -> None:
    async def test(client: AsyncClient) -> None:
        with pytest.raises(AttestationRefused):
            await events_of(client)

    with_client(node.address, test, allow=False)


@pytest.mark.parametrize(
    ("code", "expected"),
    [(grpc.StatusCode.UNAVAILABLE, NodeUnreachable), (grpc.StatusCode.RESOURCE_EXHAUSTED, CallFailed)],
)
def test_a_status_before_the_answer_is_a_typed_error(
    node: FakeNode, code: grpc.StatusCode, expected: type[Exception]
) -> None:
    async def test(client: AsyncClient) -> None:
        with pytest.raises(expected):
            await events_of(client)

    node.setup_code = code
    with_client(node.address, test)


@pytest.mark.parametrize("end", [fake_node.CUT, fake_node.Fault("abort", grpc.StatusCode.INTERNAL), fake_node.HANG])
def test_a_cut_answer_is_marked(node: FakeNode, end: fake_node.Fault) -> None:
    async def test(client: AsyncClient) -> None:
        *_, last = await events_of(client, gap_s=0.4)
        assert isinstance(last, Truncated)

    node.script = script(delta("The"), end)
    with_client(node.address, test)


def test_silence_before_the_answer_is_a_typed_error(node: FakeNode) -> None:
    async def test(client: AsyncClient) -> None:
        with pytest.raises(CallFailed, match=r"nothing came for 0\.4 s"):
            await events_of(client, gap_s=0.4)

    node.script = script(fake_node.HANG)
    with_client(node.address, test)


def test_an_altered_chunk_is_refused(node: FakeNode) -> None:
    async def test(client: AsyncClient) -> None:
        with pytest.raises(BadAnswer):
            await events_of(client)

    node.script = script(fake_node.TAMPER, delta("The"))
    with_client(node.address, test)


def test_a_key_that_a_restart_made_stale_is_fetched_again(node: FakeNode) -> None:
    async def test(client: AsyncClient) -> None:
        await client.complete("hi")
        node.renew_key()
        node.attestation()
        assert (await client.complete("hi")).is_whole

    with_client(node.address, test)


def test_cancelling_terminates_on_the_node(node: FakeNode) -> None:
    async def test(client: AsyncClient) -> None:
        answer, seen = client.ask("hi"), []
        async for event in answer:
            seen.append(event.name)
            await answer.cancel()
        assert seen == ["delta", "finish"]

    node.script = script(delta("The"), fake_node.AWAIT_TERMINATE, finish(ipb.FINISH_REASON_CANCELLED), Outcome.OK)
    with_client(node.address, test)
    assert node.seen.terminates == 1


def test_cancelling_the_task_ends_the_call(node: FakeNode) -> None:
    begun = asyncio.Event()

    async def test(client: AsyncClient) -> None:
        async def ask() -> None:
            async for _ in client.ask("hi"):
                begun.set()

        task = asyncio.create_task(ask())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    node.script = script(delta("The"), fake_node.HANG)
    with_client(node.address, test)


def test_many_requests_at_a_time_on_one_client(node: FakeNode) -> None:
    async def test(client: AsyncClient) -> None:
        answers = await asyncio.gather(*(client.complete(f"question {number}") for number in range(6)))
        assert {answer.text for answer in answers} == {"The capital is Paris."}
        assert (await client.load()).max_batch_size == 4

    with_client(node.address, test)
    assert len(node.seen.requests) == 6
