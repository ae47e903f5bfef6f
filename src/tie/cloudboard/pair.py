"""cloudboardd's end of one pair: the helper process, which in turn holds its app. Serves one request and dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
import time
from pathlib import Path
from typing import Final

from tie.cloudboard import pair_wire
from tie.cloudboard.pair_wire import Begin, Kind, Refused
from tie.contracts.errors import DeadlinePassed, PeerError

HELPER_MODULE: Final = "tie.cloudboard.helper"
_LEAVE_LIMIT_S: Final = 5.0
"""What a helper may take to tear its app down once its socket is closed."""


class Pair:
    """A warm helper with its app. Made by `start`; whoever holds it must `dispose` of it."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        binding_key: bytes,
    ) -> None:
        self._process, self._reader, self._writer = process, reader, writer
        self.binding_key = binding_key
        self.job_id = secrets.token_bytes(pair_wire.JOB_ID_BYTES)
        self.warm_since = time.monotonic()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def begin(self, deadline_ms: int, parameters: bytes) -> None:
        await self._send(Kind.BEGIN, Begin(self.job_id, deadline_ms, parameters).encode())

    async def forward(self, sealed: bytes, is_final: bool) -> None:
        await self._send(Kind.FINAL_CHUNK if is_final else Kind.CHUNK, sealed)

    async def terminate(self) -> None:
        await self._send(Kind.TERMINATE)

    async def next_response(self) -> tuple[bytes, bool]:
        """The next serialized response and whether it is the final one.

        Raises Refused when the helper refused the request, PeerGone when it died, PeerError for anything else.
        """
        kind, body = await pair_wire.read_frame(self._reader)
        if kind is Kind.REFUSED:
            raise Refused.decode(body)
        if kind not in (Kind.RESPONSE, Kind.FINAL_RESPONSE):
            raise PeerError(f"helper sent {kind.name.lower()} where a response belongs")
        return body, kind is Kind.FINAL_RESPONSE

    async def wait(self) -> int:
        """Exit status of the helper, whenever that is."""
        return await self._process.wait()

    async def dispose(self) -> None:
        """Closes the socket, which tells the helper to tear down, and sees that it is gone. Safe to repeat."""
        self._writer.close()
        await _end(self._process)

    async def _send(self, kind: Kind, body: bytes = b"") -> None:
        # A helper that is gone shows in `next_response`, which also knows why.
        with contextlib.suppress(ConnectionError):
            self._writer.write(pair_wire.encode(kind, body))
            await self._writer.drain()


async def start(config_path: Path, warmup_s: float) -> Pair:
    """Executes a fresh helper and waits until it and its app are warm.

    Raises DeadlinePassed or PeerError when they do not become so; nothing is left behind then.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with theirs:
        os.set_inheritable(theirs.fileno(), True)
        command = [sys.executable, "-m", HELPER_MODULE, "--config", str(config_path), "--fd", str(theirs.fileno())]
        try:
            process = await asyncio.create_subprocess_exec(
                *command, pass_fds=(theirs.fileno(),), stdin=asyncio.subprocess.DEVNULL
            )
        except OSError as error:
            ours.close()
            raise PeerError(f"helper could not be executed: errno {error.errno}") from error
    reader, writer = await asyncio.open_unix_connection(sock=ours, limit=pair_wire.MAX_BODY_BYTES)
    try:
        async with asyncio.timeout(warmup_s):
            return Pair(process, reader, writer, await _binding_key(reader))
    except BaseException as failure:
        writer.close()
        await _end(process)
        if isinstance(failure, TimeoutError):
            raise DeadlinePassed(f"helper and app were not warm within {warmup_s} s") from None
        raise


async def _binding_key(reader: asyncio.StreamReader) -> bytes:
    kind, body = await pair_wire.read_frame(reader)
    if kind is not Kind.WARM:
        raise PeerError(f"helper sent {kind.name.lower()} before it was warm")
    return body


async def _end(process: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(_LEAVE_LIMIT_S):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
