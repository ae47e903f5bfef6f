from __future__ import annotations

import pytest

from tie.afm_runtime.tickets import NoTicket, Tickets


def test_a_void_ticket_admits_nothing() -> None:
    tickets = Tickets()
    ticket = tickets.issue()
    tickets.void(ticket)
    with pytest.raises(NoTicket):
        tickets.claim(ticket.value)


def test_its_end_aborts_what_it_admitted_exactly_once() -> None:
    tickets, aborted = Tickets(), []
    ticket = tickets.issue()
    tickets.bind(tickets.claim(ticket.value), lambda: aborted.append(1))
    tickets.void(ticket)
    tickets.void(ticket)
    assert aborted == [1]


def test_its_end_before_the_request_was_known_aborts_it_at_once() -> None:
    tickets, aborted = Tickets(), []
    ticket = tickets.claim(tickets.issue().value)
    tickets.void(ticket)
    tickets.bind(ticket, lambda: aborted.append(1))
    assert aborted == [1]


def test_tickets_are_16_random_bytes_and_never_shown() -> None:
    tickets = Tickets()
    values = {tickets.issue().value for _ in range(100)}
    assert len(values) == 100
    assert {len(value) for value in values} == {16}
    assert repr(tickets.issue()) == "<Ticket>"
