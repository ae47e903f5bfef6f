"""The CloudBoard service as devices see it. Streams are counted here; what happens in one is invocation.py's."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import grpc

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.cloudboard import invocation, statuses
from tie.cloudboard.inbox import Inbox
from tie.cloudboard.invocation import Context, Invocation, Services, Terminated
from tie.contracts.errors import NotReady, OverCapacity, TieError
from tie.servicekit import logs

_LINGER_S: Final = 0.25
SERVICE: Final = pb.DESCRIPTOR.services_by_name["CloudBoard"].full_name

_FetchContext = grpc.aio.ServicerContext[pb.FetchAttestationRequest, pb.FetchAttestationResponse]
_WatchContext = grpc.aio.ServicerContext[pb.WatchLoadLevelRequest, pb.WatchLoadLevelResponse]


class Front:
    """Handlers are registered by hand, because an invocation's messages stay bytes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._streams = self._lingering = 0
        self._running: dict[asyncio.Task[None], Invocation] = {}
        self._ended_by_us: dict[asyncio.Task[None], TieError] = {}

    def handler(self) -> grpc.GenericRpcHandler:
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "InvokeWorkload": grpc.stream_stream_rpc_method_handler(self.invoke_workload),
            "FetchAttestation": grpc.unary_unary_rpc_method_handler(
                self.fetch_attestation,
                request_deserializer=pb.FetchAttestationRequest.FromString,
                response_serializer=pb.FetchAttestationResponse.SerializeToString,
            ),
            "WatchLoadLevel": grpc.unary_stream_rpc_method_handler(
                self.watch_load_level,
                request_deserializer=pb.WatchLoadLevelRequest.FromString,
                response_serializer=pb.WatchLoadLevelResponse.SerializeToString,
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def invoke_workload(self, _: Any, context: Context) -> None:
        """The edge of a request: every end has a status, and none reaches further than this stream."""
        async with Inbox(context) as inbox:
            try:
                self._enter()
            except OverCapacity as error:
                failure: TieError | None = error
            else:
                try:
                    failure = await self._run(Invocation(self._services, context, inbox))
                finally:
                    self._streams -= 1
            if failure is not None:
                await self._linger(inbox, failure)
                await statuses.abort(context, failure)

    async def _linger(self, inbox: Inbox, failure: TieError) -> None:
        """Lets a client that still writes come to its end; not for more of them than may have streams."""
        if isinstance(failure, Terminated) or self._lingering >= self._services.config.max_streams:
            return
        self._lingering += 1
        try:
            await inbox.linger(_LINGER_S)
        finally:
            self._lingering -= 1

    async def _run(self, invoked: Invocation) -> TieError | None:
        task = asyncio.create_task(invoked.run())
        self._running[task] = invoked
        failure: TieError | None = None
        status = "CANCELLED"
        try:
            await task
            status = "OK"
        except TieError as error:
            failure, status = error, statuses.code_of(error).name
        except asyncio.CancelledError:
            task.cancel()
            failure = self._ended_by_us.pop(task, None)
            if failure is None:
                await asyncio.gather(task, return_exceptions=True)
                raise
            status = statuses.code_of(failure).name
        except Exception as error:  # the edge of a request
            logs.logger().error("request.failed", job=invoked.job, **logs.failure_place(error))
            failure, status = TieError("internal error of the node"), "INTERNAL"
        finally:
            await invoked.settle()
            del self._running[task]
            invocation.log_end(invoked, status, self._services.board.in_flight)
        return failure

    async def fetch_attestation(
        self, _: pb.FetchAttestationRequest, context: _FetchContext
    ) -> pb.FetchAttestationResponse:
        try:
            return self._services.keyring.attestation()
        except NotReady as error:
            await statuses.abort(context, error)

    async def watch_load_level(self, _: pb.WatchLoadLevelRequest, context: _WatchContext) -> None:
        """The level now, and again whenever it changes."""
        try:
            self._enter()
        except OverCapacity as error:
            await statuses.abort(context, error)
        board, told = self._services.board, None
        try:
            while True:
                if (load := board.load()) != told:
                    told = load
                    response = pb.WatchLoadLevelResponse(
                        max_batch_size=load.max_batch_size,
                        current_batch_size=load.current_batch_size,
                        optimal_batch_size=load.optimal_batch_size,
                    )
                    await context.write(response)
                    continue
                await board.change()
        finally:
            self._streams -= 1

    async def drain(self, limit_s: float) -> None:
        """Ends what holds no pair at once, and the rest when it is done or the time is over."""
        self._end(NotReady("the node is draining"), only_idle=True)
        if self._running:
            await asyncio.wait(tuple(self._running), timeout=limit_s)
        self._end(NotReady(f"the node is draining and did not wait longer than {limit_s} s"), only_idle=False)

    def _end(self, reason: TieError, only_idle: bool) -> None:
        for task, invoked in self._running.items():
            if not (only_idle and invoked.is_bound):
                self._ended_by_us[task] = reason
                task.cancel()

    def _enter(self) -> None:
        if self._streams >= (limit := self._services.config.max_streams):
            raise OverCapacity(f"{self._streams} streams are open, the limit is {limit}")
        self._streams += 1
