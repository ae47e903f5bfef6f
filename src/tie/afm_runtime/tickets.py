"""Which connections may run a request: one random ticket each, good once, dead with its connection. No I/O here.

Called from the link's thread and from Triton's, hence the lock.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable

from tie.contracts.limits import TICKET_BYTES


class NoTicket(Exception):
    """Nobody holds this ticket, or its one request has been admitted already."""


class Ticket:
    """One connection's right to one request."""

    def __init__(self, value: bytes) -> None:
        self.value = value
        self.is_claimed = False
        self.is_void = False
        self.on_void: Callable[[], None] | None = None
        self.on_read: Callable[[int], None] | None = None

    def __repr__(self) -> str:
        return "<Ticket>"


class Tickets:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._live: dict[bytes, Ticket] = {}

    def issue(self) -> Ticket:
        ticket = Ticket(secrets.token_bytes(TICKET_BYTES))
        with self._lock:
            self._live[ticket.value] = ticket
        return ticket

    def claim(self, value: bytes) -> Ticket:
        """Uses a ticket up. Raises NoTicket."""
        with self._lock:
            ticket = self._live.get(value)
            if ticket is None or ticket.is_claimed:
                raise NoTicket
            ticket.is_claimed = True
            return ticket

    def bind(
        self, ticket: Ticket, on_void: Callable[[], None], on_read: Callable[[int], None] = lambda _: None
    ) -> None:
        """What to do when the holder aborts or is gone (at once, when that has happened by now), and when it has read
        so many tokens."""
        with self._lock:
            ticket.on_void, ticket.on_read = on_void, on_read
            is_void = ticket.is_void
        if is_void:
            on_void()

    def note_read(self, ticket: Ticket, tokens: int) -> None:
        """The holder has taken so many tokens of its request; without one it says nothing."""
        if (on_read := ticket.on_read) is not None:
            on_read(tokens)

    def void(self, ticket: Ticket) -> None:
        """The holder aborted or is gone: no request with it is admitted any more, and one that runs ends."""
        with self._lock:
            self._live.pop(ticket.value, None)
            is_first, ticket.is_void = not ticket.is_void, True
            on_void = ticket.on_void
        if is_first and on_void is not None:
            on_void()
