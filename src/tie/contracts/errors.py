"""The kinds of failure that cross a process border, each with the gRPC status that stands for it.

A message says what failed, on what, with which limit. It never holds a value that a request brought.
"""

from __future__ import annotations

from typing import ClassVar


class TieError(Exception):
    """Root of every error that this project raises on purpose."""

    grpc_status: ClassVar[str] = "INTERNAL"


class CallerError(TieError):
    """The caller asked for something that it may not, or in a way that it may not."""

    grpc_status = "INVALID_ARGUMENT"


class InvalidRequest(CallerError):
    """A field of a request is malformed or out of range. `where` is the field's path."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class Unsupported(InvalidRequest):
    """A field of the contract that this node does not implement."""

    grpc_status = "UNIMPLEMENTED"


class OutOfOrder(CallerError):
    """A message came before the one that must precede it, or twice."""

    grpc_status = "FAILED_PRECONDITION"


class NotAdmitted(CallerError):
    """The peer's credentials, ticket or key do not admit it."""

    grpc_status = "PERMISSION_DENIED"


class Replayed(NotAdmitted):
    """A wrapped key was presented before."""


class OverCapacity(TieError):
    """The node or a limit is full; trying later or elsewhere may succeed."""

    grpc_status = "RESOURCE_EXHAUSTED"


class NotReady(TieError):
    """The node is not taking requests: it starts, drains or has an error."""

    grpc_status = "UNAVAILABLE"


class DeadlinePassed(TieError):
    """A wait on another process ended without its answer; the message says what it waited for."""

    grpc_status = "DEADLINE_EXCEEDED"


class PeerError(TieError):
    """Another process sent what it must not, or stopped without saying so."""


class PeerGone(PeerError):
    """The other side's socket ended before its work was done."""

    grpc_status = "UNAVAILABLE"


class ConfigError(TieError):
    """The configuration cannot be used; the process does not start."""

    grpc_status = "FAILED_PRECONDITION"
