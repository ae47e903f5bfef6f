"""The asyncio client: the same events as the blocking one's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Final, Self

import grpc

from tie.api.cloudboard.v1 import cloudboard_pb2, cloudboard_pb2_grpc
from tie.clients import cloudboard
from tie.clients.cloudboard import Load
from tie.clients.rpc_errors import typed
from tie.vre import attestation
from tie.vre.attestation import NodeKey
from tie.vre.client import (
    ANSWER_DEADLINE_S,
    ASK_DEADLINE_S,
    CANCEL_BOUND_S,
    CLOSE_BOUND_S,
    GAP_DEADLINE_S,
    Prompt,
    as_request,
)
from tie.vre.collected import Collected, collect_async
from tie.vre.errors import CallFailed, typed_errors
from tie.vre.events import Event
from tie.vre.exchange import TERMINATE, Exchange, is_stale_key
from tie.vre.request import GREEDY, Sampling, padded


class AsyncClient:
    """Talks to one node from one event loop; any number of requests at a time. Use it as an async context manager."""

    def __init__(self, address: str, *, allow_development_attestation: bool = False) -> None:
        self.address = address
        self._allow_development = allow_development_attestation
        self._channel = grpc.aio.insecure_channel(address, options=cloudboard.CHANNEL_OPTIONS)
        self._stub: cloudboard_pb2_grpc.CloudBoardAsyncStub = cloudboard_pb2_grpc.CloudBoardStub(self._channel)
        self._key: NodeKey | None = None

    async def node_key(self, *, fresh: bool = False) -> NodeKey:
        """The node's verified key. Raises AttestationRefused, NodeUnreachable or CallFailed."""
        now = time.time()
        if self._key is None or fresh or not self._key.is_fresh(now):
            request = cloudboard_pb2.FetchAttestationRequest()
            with typed_errors():
                try:
                    answer = await self._stub.FetchAttestation(request, timeout=ASK_DEADLINE_S)
                except grpc.RpcError as error:
                    raise typed(error, "the node", "attestation", ASK_DEADLINE_S) from error
            self._key = attestation.verify(answer, allow_development=self._allow_development, now_unix_s=now)
        return self._key

    async def load(self) -> Load:
        """The load that the node publishes now. Raises NodeUnreachable or CallFailed."""
        watch = self._stub.WatchLoadLevel(cloudboard_pb2.WatchLoadLevelRequest(), timeout=ASK_DEADLINE_S)
        try:
            level: Any = await watch.read()
        except grpc.RpcError as error:
            with typed_errors():
                raise typed(error, "the node", "load level", ASK_DEADLINE_S) from error
        finally:
            watch.cancel()
        if level is grpc.aio.EOF:
            raise CallFailed("refused", "the node ended its load stream before the first level")
        return Load(level.max_batch_size, level.current_batch_size, level.optimal_batch_size)

    def ask(
        self,
        prompt: Prompt,
        sampling: Sampling = GREEDY,
        *,
        timeout_s: float = ANSWER_DEADLINE_S,
        gap_s: float = GAP_DEADLINE_S,
        trace_id: str = "",
    ) -> AsyncAnswer:
        """Seals the request; iterate over the answer for its events. Raises InvalidRequest at once."""
        return AsyncAnswer(self, padded(as_request(prompt, sampling)), timeout_s, gap_s, trace_id)

    async def complete(self, prompt: Prompt, sampling: Sampling = GREEDY, **limits: Any) -> Collected:
        """The whole answer at once."""
        return await collect_async(self.ask(prompt, sampling, **limits))

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    def _invoke(self, timeout_s: float) -> Any:
        return self._stub.InvokeWorkload(timeout=timeout_s)


LOST_STATUS_RETRIES: Final = 4
_LOST_STATUS: Final = (grpc.StatusCode.INTERNAL, "Internal error from Core")


class AsyncAnswer:
    """Iterate over it once; raises and ends as `client.Answer` does. Cancelling the task cancels the request."""

    def __init__(self, client: AsyncClient, payload: bytes, timeout_s: float, gap_s: float, trace_id: str) -> None:
        self._client = client
        self._payload = payload
        self._ends_at = time.monotonic() + timeout_s
        self._gap_s = gap_s
        self._trace_id = trace_id
        self._call: Any = None
        self._bound: asyncio.Timeout | None = None
        self.was_cancelled = False

    async def __aiter__(self) -> AsyncIterator[Event]:
        key = await self._client.node_key()
        if self.was_cancelled:
            return
        try:
            async for event in self._attempt(key):
                yield event
        except CallFailed as error:
            if not is_stale_key(error) or (renewed := await self._client.node_key(fresh=True)).key_id == key.key_id:
                raise
            async for event in self._attempt(renewed):
                yield event

    async def cancel(self) -> None:
        """Asks the node to stop; the events until its end still come, for a bounded time."""
        if self.was_cancelled:
            return
        self.was_cancelled = True
        if self._bound is not None:
            self._bound.reschedule(asyncio.get_running_loop().time() + CANCEL_BOUND_S)
        if self._call is not None and not self._call.done():
            try:
                await self._call.write(TERMINATE)
            except (grpc.RpcError, asyncio.InvalidStateError):
                return  # it has ended meanwhile

    async def _attempt(self, key: NodeKey) -> AsyncIterator[Event]:
        """Sealed anew where grpc lost the node's refusal of an upload that had not ended: nothing had run then."""
        for is_last in (*(False,) * LOST_STATUS_RETRIES, True):
            try:
                async for event in self._exchange(key, is_last):
                    yield event
            except _StatusLost:
                continue
            return

    async def _exchange(self, key: NodeKey, is_last: bool) -> AsyncIterator[Event]:
        exchange = Exchange(key, self._payload, self._trace_id)
        call = self._call = self._client._invoke(max(0.001, self._ends_at - time.monotonic()))
        upload = asyncio.create_task(_upload(call, exchange))
        try:
            while (message := await self._read(call, exchange)) is not grpc.aio.EOF:
                for event in exchange.receive(message):
                    yield event
                if exchange.is_over:
                    await call.done_writing()
        except TimeoutError:
            for event in exchange.fail(grpc.StatusCode.DEADLINE_EXCEEDED, self._why_late()):
                yield event
        except grpc.RpcError as error:
            details = error.details() if isinstance(error, grpc.aio.AioRpcError) else ""
            code = error.code() if isinstance(error, grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
            if not is_last and not exchange.has_begun and (code, details) == _LOST_STATUS:
                raise _StatusLost from error
            for event in exchange.fail(code, details or ""):
                yield event
        else:
            for event in exchange.end():
                yield event
        finally:
            upload.cancel()
            call.cancel()
            self._call = None

    async def _read(self, call: Any, exchange: Exchange) -> Any:
        bound_s = CLOSE_BOUND_S if exchange.is_over else CANCEL_BOUND_S if self.was_cancelled else self._gap_s
        try:
            async with asyncio.timeout(bound_s) as self._bound:
                return await call.read()
        finally:
            self._bound = None

    def _why_late(self) -> str:
        if self.was_cancelled:
            return f"cancelled, and the node did not end within {CANCEL_BOUND_S:g} s"
        return f"nothing came for {self._gap_s:g} s"


class _StatusLost(Exception):
    """A write met a call that the node had just ended, and grpc put a status of its own in place of the node's."""


async def _upload(call: Any, exchange: Exchange) -> None:
    try:
        for message in exchange.opening():
            await call.write(message)
    except (grpc.RpcError, asyncio.InvalidStateError):
        return  # the call has ended: reading it says how
