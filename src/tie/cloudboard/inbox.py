"""A client's messages, read by one task of their own: whoever waits for the next can be cancelled without harm.

gRPC's read must not be: an abandoned one keeps the call from ever being read again. And a stream that is refused
while its client still writes must be read on for a moment, or that client sees a failed write instead of the status.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import grpc


class Inbox:
    """Reads ahead by one message, no more. Use with `async with`."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue(1)
        self._is_closed = False

    async def __aenter__(self) -> Inbox:
        self._task = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()

    async def next(self) -> bytes | None:
        """The next message; None once the client has half-closed."""
        if self._is_closed:
            return None
        message = await self._messages.get()
        self._is_closed = message is None
        return message

    async def linger(self, limit_s: float) -> None:
        """Takes what the client still sends, and forgets it, until it half-closes or the time is over."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while await self.next() is not None:
                    pass

    async def _read(self) -> None:
        message: object = b""
        while isinstance(message, bytes):
            try:
                message = await self._context.read()
            except grpc.aio.BaseError:
                message = grpc.aio.EOF
            await self._messages.put(message if isinstance(message, bytes) else None)
