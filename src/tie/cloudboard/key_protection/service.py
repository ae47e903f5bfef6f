"""Both faces of key protection over gRPC: custody for cloudboardd, one opening for a helper."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

import grpc

from tie.api.key_protection.v1 import key_protection_pb2 as pb
from tie.api.key_protection.v1 import key_protection_pb2_grpc as rpc
from tie.cloudboard import statuses
from tie.cloudboard.key_protection.decapsulation import Decapsulator
from tie.cloudboard.key_protection.vault import Job, Vault
from tie.contracts.errors import CallerError, OutOfOrder, TieError
from tie.servicekit import logs

_HoldContext = grpc.aio.ServicerContext[pb.HoldKeysRequest, pb.HoldKeysResponse]
_OpenContext = grpc.aio.ServicerContext[pb.DecapsulateRequest, pb.DecapsulateResponse]
_OUTGOING_LIMIT: Final = 1024


class Custody(rpc.KeyCustodyServicer):
    """Holds keys for as long as one custodian's stream lives, and not a moment longer."""

    def __init__(self, vault: Vault) -> None:
        self._vault = vault
        self._outgoing: asyncio.Queue[pb.HoldKeysResponse | None] | None = None

    # A coroutine that writes, not a generator: a generator's `finally` may wait for the garbage collector.
    async def HoldKeys(  # type: ignore[override]  # noqa: N802
        self, request_iterator: AsyncIterator[pb.HoldKeysRequest], context: _HoldContext
    ) -> None:
        if self._outgoing is not None:
            await statuses.abort(context, OutOfOrder("another custodian is connected"))
        outgoing = self._outgoing = asyncio.Queue(_OUTGOING_LIMIT)
        reading = asyncio.create_task(self._read(request_iterator, outgoing))
        logs.logger().info("custody.opened")
        try:
            while (response := await outgoing.get()) is not None:
                await context.write(response)
            await reading
        except TieError as error:
            await statuses.abort(context, error)
        finally:
            reading.cancel()
            self._vault.forget()
            self._outgoing = None
            logs.logger().info("custody.ended")

    def tell_full(self, key_number: int) -> None:
        """The key opens no more: cloudboardd should rotate."""
        if self._outgoing is not None:
            self._outgoing.put_nowait(pb.HoldKeysResponse(replay_set_full=pb.ReplaySetFull(key_number=key_number)))

    async def _read(
        self, requests: AsyncIterator[pb.HoldKeysRequest], outgoing: asyncio.Queue[pb.HoldKeysResponse | None]
    ) -> None:
        is_open = False
        try:
            async for request in requests:
                kind = request.WhichOneof("message")
                if is_open == (kind == "open"):
                    raise OutOfOrder("custody begins with one Open")
                is_open = True
                if (response := self._apply(kind, request)) is not None:
                    await outgoing.put(response)
        finally:
            await outgoing.put(None)

    def _apply(self, kind: str | None, request: pb.HoldKeysRequest) -> pb.HoldKeysResponse | None:
        match kind:
            case "open" | "rotate":
                number, public_key = self._vault.make_key()
                return pb.HoldKeysResponse(key_made=pb.KeyMade(key_number=number, public_key=public_key))
            case "retire":
                self._vault.retire(request.retire.key_number)
            case "announce_job":
                job = request.announce_job
                self._vault.announce(job.job_id, Job(job.binding_key, job.key_number, job.enc))
                return pb.HoldKeysResponse(job_announced=pb.JobAnnounced(job_id=job.job_id))
            case "end_job":
                self._vault.end_job(request.end_job.job_id)
            case _:
                raise CallerError("custody message has no known kind")
        return None


class Protection(rpc.KeyProtectionServicer):
    """Opens one enc for one announced job."""

    def __init__(self, vault: Vault, decapsulator: Decapsulator, custody: Custody) -> None:
        self._vault, self._decapsulator, self._custody = vault, decapsulator, custody

    async def Decapsulate(  # noqa: N802 - the proto's name
        self, request: pb.DecapsulateRequest, context: _OpenContext
    ) -> pb.DecapsulateResponse:
        started = time.monotonic()
        presented = Job(request.binding_key, request.key_number, request.enc)
        try:
            private_key = self._vault.admit(request.job_id, presented)
            enc, sealed = await self._decapsulator.open(
                request.key_number, private_key, request.enc, request.binding_key
            )
        except TieError as error:
            logs.logger().warning("decapsulation.refused", error_type=type(error).__name__, job=request.job_id.hex())
            await statuses.abort(context, error)
        finally:
            if self._vault.is_full(request.key_number):
                self._custody.tell_full(request.key_number)
        elapsed_ms = round((time.monotonic() - started) * 1e3, 3)
        logs.logger().info("decapsulation.done", job=request.job_id.hex(), elapsed_ms=elapsed_ms)
        return pb.DecapsulateResponse(enc=enc, sealed_secret=sealed)
