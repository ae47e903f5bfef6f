"""What can go wrong before or beside an answer. What the node says inside the answer is an event, not an exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tie.contracts.errors import DeadlinePassed, NotReady, PeerError, TieError


class VreError(TieError):
    """Root of what this package raises on purpose."""


class NodeUnreachable(VreError):
    """No node answers at the address, or it does not take requests now; another one, or later, may."""

    grpc_status = "UNAVAILABLE"


class CallFailed(VreError):
    """The node ended the call without an answer. `kind` is the gRPC status in lower case."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class BadAnswer(VreError):
    """What came back is not what a node may send: it does not open, or is no message of the contract."""


@contextmanager
def typed_errors() -> Iterator[None]:
    """What calls to a node's edge raise, as this package's own errors."""
    try:
        yield
    except NotReady as error:
        raise NodeUnreachable(str(error)) from error
    except DeadlinePassed as error:
        raise CallFailed("deadline_exceeded", str(error)) from error
    except PeerError as error:
        raise CallFailed("refused", str(error)) from error
