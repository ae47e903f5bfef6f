"""cloudboardd's connection to key protection: keys come and go with it, and each job is announced on it."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from tie.api.key_protection.v1 import key_protection_pb2 as pb
from tie.api.key_protection.v1 import key_protection_pb2_grpc as rpc
from tie.cloudboard.keyring import Keyring
from tie.cloudboard.pair_wire import JOB_ID_BYTES
from tie.contracts.errors import DeadlinePassed, NotReady, PeerError, TieError
from tie.envelope.wrapped_key import WrappedKey
from tie.servicekit import logs

_ANNOUNCE_LIMIT_S: Final = 5.0
_RETRY_FIRST_S: Final = 0.1
_RETRY_LAST_S: Final = 2.0
_PROOF_INTERVAL_S: Final = 2.0
_SHORTEST_LOOK_S: Final = 0.05

_Call = grpc.aio.StreamStreamCall[pb.HoldKeysRequest, pb.HoldKeysResponse]


class Custody:
    """Holds the HoldKeys stream, connects again when it ends, and rotates keys in time."""

    def __init__(self, socket: Path, keyring: Keyring, on_change: Callable[[], None]) -> None:
        self._socket, self._keyring, self._on_change = socket, keyring, on_change
        self._call: _Call | None = None
        self._sending = asyncio.Lock()
        self._announced: dict[bytes, asyncio.Future[None]] = {}
        self._is_rotating = False
        self._look = asyncio.Event()

    async def run(self) -> None:
        """Connects and stays connected until cancelled."""
        retry_s = _RETRY_FIRST_S
        while True:
            try:
                async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=_CHANNEL_OPTIONS) as channel:
                    await self._hold(channel)
            except* (grpc.aio.AioRpcError, asyncio.InvalidStateError, TieError) as lost:
                logs.logger().warning("custody.lost", error_type=type(lost.exceptions[0]).__name__)
            retry_s = _RETRY_FIRST_S if self._keyring.accepted else min(retry_s * 2, _RETRY_LAST_S)
            self._forget()
            await asyncio.sleep(retry_s)

    async def announce(self, job_id: bytes, binding_key: bytes, wrapped: WrappedKey) -> None:
        """Returns when key protection knows the job. Raises NotReady or DeadlinePassed."""
        await self._announce(
            pb.AnnounceJob(job_id=job_id, binding_key=binding_key, key_number=wrapped.key_number, enc=wrapped.enc)
        )

    async def _announce(self, job: pb.AnnounceJob) -> None:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._announced[job.job_id] = answered
        try:
            async with asyncio.timeout(_ANNOUNCE_LIMIT_S):
                await self._send(pb.HoldKeysRequest(announce_job=job))
                await answered
        except TimeoutError:
            raise DeadlinePassed(f"key protection did not take the job within {_ANNOUNCE_LIMIT_S} s") from None
        finally:
            self._announced.pop(job.job_id, None)

    async def end_job(self, job_id: bytes) -> None:
        """The job needs its enc no more, or never will."""
        try:
            async with asyncio.timeout(_ANNOUNCE_LIMIT_S):
                await self._send(pb.HoldKeysRequest(end_job=pb.EndJob(job_id=job_id)))
        except (TimeoutError, NotReady):
            return  # jobs end with the connection

    async def retire(self, key_numbers: tuple[int, ...]) -> None:
        """Ends keys for good. Raises NotReady when key protection is gone, and the keys with it."""
        for number in key_numbers:
            await self._send(pb.HoldKeysRequest(retire=pb.Retire(key_number=number)))
        self._look.set()

    def look(self) -> None:
        """The keyring may want another key: do not wait for the clock."""
        self._look.set()

    async def _hold(self, channel: grpc.aio.Channel) -> None:
        call: _Call = rpc.KeyCustodyStub(channel).HoldKeys()
        await call.write(pb.HoldKeysRequest(open=pb.Open()))
        self._call, self._is_rotating = call, True
        async with asyncio.TaskGroup() as group:
            group.create_task(self._rotate_in_time())
            group.create_task(self._prove_alive())
            async for response in call:
                self._take(response)
            raise PeerError("key protection ended its stream")

    async def _prove_alive(self) -> None:
        """Announces a job that nobody has, now and then: a stopped key protection is not a connected one."""
        while True:
            await asyncio.sleep(_PROOF_INTERVAL_S)
            job_id = secrets.token_bytes(JOB_ID_BYTES)
            await self._announce(
                pb.AnnounceJob(job_id=job_id, binding_key=secrets.token_bytes(32), enc=secrets.token_bytes(32))
            )
            await self.end_job(job_id)

    def _take(self, response: pb.HoldKeysResponse) -> None:
        match response.WhichOneof("message"):
            case "key_made":
                self._is_rotating = False
                self._keyring.add(response.key_made.key_number, response.key_made.public_key)
                logs.logger().info("key.made", key_number=response.key_made.key_number)
                self._look.set()
                self._on_change()
            case "job_announced":
                if (answered := self._announced.get(response.job_announced.job_id)) and not answered.done():
                    answered.set_result(None)
            case "replay_set_full":
                current = self._keyring.current
                if current is not None and current.key_number == response.replay_set_full.key_number:
                    current.rotates_at = 0.0
                    self._look.set()
            case _:
                raise PeerError("key protection sent a message of no known kind")

    async def _rotate_in_time(self) -> None:
        """Ends with the connection, which `_hold` notices by itself."""
        with contextlib.suppress(NotReady):
            while True:
                await self._retire_expired()
                if self._keyring.is_rotation_due() and not self._is_rotating:
                    self._is_rotating = True
                    await self._send(pb.HoldKeysRequest(rotate=pb.Rotate()))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(max(_SHORTEST_LOOK_S, self._keyring.next_change_s())):
                        await self._look.wait()
                self._look.clear()

    async def _retire_expired(self) -> None:
        for number in self._keyring.expire():
            logs.logger().info("key.expired", key_number=number)
            await self._send(pb.HoldKeysRequest(retire=pb.Retire(key_number=number)))
            self._on_change()

    async def _send(self, request: pb.HoldKeysRequest) -> None:
        call = self._call
        if call is None:
            raise NotReady("key protection is not connected")
        try:
            async with self._sending:
                await call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            raise NotReady("key protection is not connected") from None

    def _forget(self) -> None:
        self._call = None
        self._keyring.clear()
        for answered in self._announced.values():
            if not answered.done():
                answered.set_exception(NotReady("key protection is gone"))
        self._on_change()


_CHANNEL_OPTIONS: Final = (("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000))
