"""One InvokeWorkload stream from its first message to its end: acts on what sessions.py decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import grpc
from google.protobuf.message import DecodeError

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.cloudboard import admission, sessions
from tie.cloudboard.board import Board
from tie.cloudboard.config import CloudboardConfig
from tie.cloudboard.custody import Custody
from tie.cloudboard.inbox import Inbox
from tie.cloudboard.keyring import Keyring
from tie.cloudboard.pair import Pair
from tie.cloudboard.pool import Pool
from tie.cloudboard.sessions import Action, Event, State
from tie.contracts.errors import DeadlinePassed, InvalidRequest, OverCapacity, PeerError, PeerGone, TieError
from tie.contracts.limits import MAX_MESSAGE_BYTES, MAX_REQUEST_BYTES
from tie.servicekit import logs

SETUP_ACK: Final = pb.InvokeWorkloadResponse(setup_ack=pb.SetupAck()).SerializeToString()
MAX_UPLOAD_BYTES: Final = MAX_REQUEST_BYTES + 256 * 1024
"""Sealed: the request and room for the overhead of its chunks. The helper holds the opened request to its limit."""
_SETTLE_LIMIT_S: Final = 1.0

Context = grpc.aio.ServicerContext[bytes, bytes]


class Terminated(TieError):
    """The client said Terminate."""

    grpc_status = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Services:
    """What every invocation shares."""

    config: CloudboardConfig
    board: Board
    keyring: Keyring
    custody: Custody
    pool: Pool


@dataclass(slots=True)
class Account:
    """Counts and times of one request, for its summary line."""

    started: float
    request_bytes: int = 0
    response_messages: int = 0
    wait_ms: float = 0.0

    def elapsed_ms(self) -> float:
        return round((time.monotonic() - self.started) * 1e3, 3)


class Invocation:
    """Call `run` once. Messages are bytes on both sides: answers are passed on unread."""

    def __init__(self, services: Services, context: Context, inbox: Inbox) -> None:
        self._services, self._context, self._inbox = services, context, inbox
        self._state = State.OPENED
        self._pair: Pair | None = None
        self._acknowledged: asyncio.Future[None] | None = None
        self._until_first: asyncio.Timeout | None = None
        self.account = Account(time.monotonic())

    @property
    def is_bound(self) -> bool:
        """Whether a pair serves it; one that has none can be ended at any time without loss."""
        return self._pair is not None

    @property
    def job(self) -> str:
        return self._pair.job_id.hex() if self._pair is not None else ""

    async def run(self) -> None:
        """Returns when the final response chunk is written. Raises TieError with the status for any other end."""
        config = self._services.config
        async with _limit(config.request_timeout_s, "the request to end"):
            async with _limit(config.setup_timeout_s, "setup"):
                await self._receive()
            self._check_room()
            await self._acknowledge()
            async with _limit(config.setup_timeout_s, "parameters after setup"):
                action, message = await self._receive()
            if action is Action.END:
                raise Terminated("terminated by the client")
            await self._bind_and_serve(message.parameters)

    async def settle(self) -> None:
        """Call before the stream is aborted: gRPC cannot send a status while its first message is half sent."""
        if self._acknowledged is not None and not self._acknowledged.done():
            await asyncio.wait({self._acknowledged}, timeout=_SETTLE_LIMIT_S)

    async def _acknowledge(self) -> None:
        self._acknowledged = asyncio.ensure_future(self._context.write(SETUP_ACK))
        await asyncio.shield(self._acknowledged)

    async def _bind_and_serve(self, parameters: pb.Parameters) -> None:
        services = self._services
        self._check_room()
        admitted = admission.admit(parameters, services.keyring)
        waited_from = time.monotonic()
        pair = self._pair = await services.pool.acquire(services.config.pair_wait_s)
        self.account.wait_ms = round((time.monotonic() - waited_from) * 1e3, 3)
        try:
            await services.custody.announce(pair.job_id, pair.binding_key, admitted.wrapped)
            remaining_ms = services.config.request_timeout_s * 1e3 - self.account.elapsed_ms()
            await pair.begin(max(1, int(remaining_ms)), parameters.SerializeToString())
            await self._serve(pair)
        finally:
            services.pool.release(pair)
            await services.custody.end_job(pair.job_id)

    async def _serve(self, pair: Pair) -> None:
        """Requests go up while answers come down; the first of the two to fail ends both."""
        try:
            async with asyncio.TaskGroup() as group:
                upload = group.create_task(self._upload(pair))
                await self._answer(pair)
                upload.cancel()
        except* TieError as failures:
            failure = failures.exceptions[0]
            while isinstance(failure, ExceptionGroup):
                failure = failure.exceptions[0]
            raise failure from None

    async def _upload(self, pair: Pair) -> None:
        async with _limit(self._services.config.upload_timeout_s, "the final request chunk"):
            while self._state is State.UPLOADING:
                await self._act(pair, *await self._receive())
        if not self.account.response_messages and self._until_first is not None:
            self._until_first.reschedule(asyncio.get_running_loop().time() + self._services.config.idle_timeout_s)
        while True:
            action, message = await self._receive()
            if action is Action.NOTHING:
                return
            await self._act(pair, action, message)

    async def _act(self, pair: Pair, action: Action, message: pb.InvokeWorkloadRequest) -> None:
        if action is Action.TEAR_DOWN:
            await pair.terminate()
            return
        assert action is Action.FORWARD, "the table has no other action once a pair is bound"
        chunk = message.request_chunk
        self.account.request_bytes += len(chunk.encrypted_payload)
        if len(chunk.encrypted_payload) > MAX_MESSAGE_BYTES:
            raise OverCapacity(
                f"request chunk has {len(chunk.encrypted_payload)} bytes, the limit is {MAX_MESSAGE_BYTES}"
            )
        if self.account.request_bytes > MAX_UPLOAD_BYTES:
            raise OverCapacity(f"request passes the limit of {MAX_REQUEST_BYTES} bytes")
        await pair.forward(chunk.encrypted_payload, chunk.is_final)

    async def _answer(self, pair: Pair) -> None:
        idle_s = self._services.config.idle_timeout_s
        # The upload has a limit of its own: an answer is late only once its request is whole.
        async with _limit(None, "the first response chunk") as self._until_first:
            response, is_final = await self._next_response(pair)
        while True:
            self.account.response_messages += 1
            async with _limit(idle_s, "the client to take a response chunk"):
                await self._context.write(response)
            if is_final:
                return
            async with _limit(idle_s, "the next response chunk"):
                response, is_final = await self._next_response(pair)

    async def _next_response(self, pair: Pair) -> tuple[bytes, bool]:
        try:
            return await pair.next_response()
        except PeerGone:
            if self._state is State.TERMINATED:
                raise Terminated("terminated by the client") from None
            raise PeerError("the helper of this request ended before its answer was complete") from None

    async def _receive(self) -> tuple[Action, pb.InvokeWorkloadRequest]:
        """The next message and what to do with it. Raises InvalidRequest or OutOfOrder."""
        raw = await self._inbox.next()
        if raw is None:
            message, event = pb.InvokeWorkloadRequest(), Event.HALF_CLOSE
        else:
            message = _parse(raw)
            event = _event(message)
        self._state, action = sessions.step(self._state, event)
        return action, message

    def _check_room(self) -> None:
        board = self._services.board
        board.check_admits()
        if board.in_flight >= board.capacity:
            raise OverCapacity(f"{board.in_flight} requests are in flight, the limit is {board.capacity}")


def _parse(raw: bytes) -> pb.InvokeWorkloadRequest:
    try:
        return pb.InvokeWorkloadRequest.FromString(raw)
    except DecodeError:
        raise InvalidRequest("message", f"{len(raw)} bytes that are not an InvokeWorkloadRequest") from None


def _event(message: pb.InvokeWorkloadRequest) -> Event:
    match message.WhichOneof("message"):
        case "setup":
            return Event.SETUP
        case "parameters":
            return Event.PARAMETERS
        case "request_chunk":
            return Event.FINAL_CHUNK if message.request_chunk.is_final else Event.CHUNK
        case "terminate":
            return Event.TERMINATE
        case _:
            raise InvalidRequest("message", "none of the known kinds")


@asynccontextmanager
async def _limit(seconds: float | None, waited_for: str) -> AsyncIterator[asyncio.Timeout]:
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield scope
    except TimeoutError:
        if not scope.expired():
            raise
        raise DeadlinePassed(f"waited too long for {waited_for}") from None


def log_end(invocation: Invocation, status: str, in_flight: int) -> None:
    """The summary line of one request."""
    account = invocation.account
    logs.logger().info(
        "request.ended",
        job=invocation.job,
        status=status,
        request_bytes=account.request_bytes,
        response_messages=account.response_messages,
        wait_ms=account.wait_ms,
        total_ms=account.elapsed_ms(),
        in_flight=in_flight,
    )
