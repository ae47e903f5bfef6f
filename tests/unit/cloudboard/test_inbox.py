"""A client's messages are read by a task of their own, so that no wait for them harms the call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import grpc
import pytest

from tie.cloudboard.inbox import Inbox


class FakeContext:
    """Gives what was put; counts reads that are under way at one time."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[object] = asyncio.Queue()
        self.reading = self.most_reading = self.abandoned = 0

    async def read(self) -> object:
        self.reading += 1
        self.most_reading = max(self.most_reading, self.reading)
        try:
            return await self.messages.get()
        except asyncio.CancelledError:
            self.abandoned += 1
            raise
        finally:
            self.reading -= 1


def with_inbox(scenario: Callable[[FakeContext, Inbox], Awaitable[None]]) -> None:
    async def run() -> None:
        context = FakeContext()
        async with asyncio.timeout(10), Inbox(cast(Any, context)) as inbox:
            await scenario(context, inbox)

    asyncio.run(run())


def test_a_wait_that_is_given_up_abandons_no_read_and_loses_no_message() -> None:
    async def scenario(context: FakeContext, inbox: Inbox) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await inbox.next()
        assert context.abandoned == 0
        context.messages.put_nowait(b"one")
        assert await inbox.next() == b"one"
        assert context.most_reading == 1

    with_inbox(scenario)


def test_it_reads_ahead_by_one_message_and_holds_the_next() -> None:
    async def scenario(context: FakeContext, inbox: Inbox) -> None:
        for number in range(5):
            context.messages.put_nowait(b"%d" % number)
        while context.messages.qsize() > 3:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        assert context.messages.qsize() == 3
        assert [await inbox.next() for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]

    with_inbox(scenario)


def test_the_half_close_is_told_again_and_again() -> None:
    async def scenario(context: FakeContext, inbox: Inbox) -> None:
        context.messages.put_nowait(grpc.aio.EOF)
        assert await inbox.next() is None
        assert await inbox.next() is None

    with_inbox(scenario)


def test_lingering_ends_with_the_half_close_or_the_limit() -> None:
    async def scenario(context: FakeContext, inbox: Inbox) -> None:
        context.messages.put_nowait(b"late")
        await inbox.linger(0.01)
        assert context.messages.empty()
        context.messages.put_nowait(b"later")
        context.messages.put_nowait(grpc.aio.EOF)
        await inbox.linger(10)
        assert await inbox.next() is None

    with_inbox(scenario)
