"""One decapsulation in one short-lived child: has children forked ahead, and gives each one job."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections import deque
from typing import Final

from tie.cloudboard.key_protection import opener
from tie.cloudboard.key_protection.sealed_secret import BINDING_SUITE
from tie.contracts.errors import DeadlinePassed, PeerGone
from tie.envelope.refusal import EnvelopeRefused

_REPLY_LIMIT_S: Final = opener.CHILD_LIMIT_S + 1.0
_START_LIMIT_S: Final = 10.0
_SPARES: Final = 4
"""Children that wait for their job, so that no request waits for a fork."""
_REFILL_DELAY_S: Final = 0.05
"""A fork costs the CPU that the request just opened wants."""


class Decapsulator:
    """Owns the opener process; starts another when it died. Use from one event loop; `close` ends the process."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._spares: deque[socket.socket] = deque()
        self._is_settled = False

    async def open(self, key_number: int, private_key: bytes, enc: bytes, binding_key: bytes) -> tuple[bytes, bytes]:
        """Encapsulation to the binding key, sealed secret.

        Raises EnvelopeRefused for an enc or binding key that cannot be used, PeerGone when the child died,
        DeadlinePassed when it did not answer.
        """
        job = bytes([key_number]) + private_key + enc + binding_key
        reply = await self._ask(job) or await self._ask_anew(job)
        if reply == opener.REFUSED:
            raise EnvelopeRefused("enc or binding key is a low-order point or malformed")
        if reply[:1] != opener.OPENED or len(reply) != 1 + opener.REPLY_BYTES:
            raise PeerGone("decapsulation's child ended without an answer")
        end_of_enc = 1 + BINDING_SUITE.kem.enc_bytes
        return reply[1:end_of_enc], reply[end_of_enc:]

    async def start(self) -> None:
        """Starts the opener and waits until it answers, so that no request pays for its imports."""
        suite = BINDING_SUITE
        private, public = suite.kem.generate()
        _, enc = suite.kem.encapsulate(public)
        async with asyncio.timeout(_START_LIMIT_S):
            await self.open(0, private, enc, public)

    def close(self) -> None:
        """Ends the opener and every child that has no job yet."""
        while self._spares:
            self._spares.popleft().close()
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def _ask_anew(self, job: bytes) -> bytes:
        """The opener or its child died without an answer: another opener gets the job, once."""
        self.close()
        return await self._ask(job)

    async def _ask(self, job: bytes) -> bytes:
        """The child's reply; empty when it died. Raises DeadlinePassed."""
        loop = asyncio.get_running_loop()
        try:
            self._fill()
            with self._spares.popleft() as connection:
                async with asyncio.timeout(_REPLY_LIMIT_S if self._is_settled else _START_LIMIT_S):
                    await loop.sock_sendall(connection, job)
                    reply = await loop.sock_recv(connection, 1 + opener.REPLY_BYTES)
        except TimeoutError:
            raise DeadlinePassed("decapsulation did not answer in time") from None
        except OSError:
            return b""
        self._is_settled = self._is_settled or bool(reply)
        loop.call_later(_REFILL_DELAY_S, self._refill)
        return reply

    def _refill(self) -> None:
        if self._control is not None:
            try:
                self._fill()
            except OSError:
                self.close()  # the next job starts another opener

    def _fill(self) -> None:
        """Has children forked until enough wait. Raises OSError when the opener is gone."""
        while len(self._spares) < _SPARES:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.setblocking(False)
            self._spares.append(ours)
            with theirs:
                socket.send_fds(self._opener(), [b"\x00"], [theirs.fileno()])

    def _opener(self) -> socket.socket:
        if self._control is None:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                command = [sys.executable, "-m", opener.__name__, "--fd", str(theirs.fileno())]
                self._process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL)
        return self._control
