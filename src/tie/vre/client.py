"""The blocking client: one channel to one node, an iterator of events for each request."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Final, Self

import grpc

from tie.api.cloudboard.v1 import cloudboard_pb2, cloudboard_pb2_grpc
from tie.api.inference.v1 import inference_pb2
from tie.clients import cloudboard
from tie.clients.cloudboard import Load
from tie.clients.rpc_errors import status_of
from tie.vre import attestation
from tie.vre.attestation import NodeKey
from tie.vre.collected import Collected, collect
from tie.vre.errors import CallFailed, typed_errors
from tie.vre.events import Event
from tie.vre.exchange import TERMINATE, Exchange, is_stale_key
from tie.vre.request import GREEDY, ChatMessage, Sampling, chat_request, padded
from tie.vre.watchdog import Watchdog

ASK_DEADLINE_S: Final = 10.0
ANSWER_DEADLINE_S: Final = 900.0
GAP_DEADLINE_S: Final = 90.0
"""A node that is alive says so at least every 30 s."""
CANCEL_BOUND_S: Final = 5.0
CLOSE_BOUND_S: Final = 2.0

Prompt = str | Sequence[ChatMessage] | inference_pb2.InferenceRequest


class Client:
    """Talks to one node. Not for several threads at once; close it, or use it as a context manager."""

    def __init__(self, address: str, *, allow_development_attestation: bool = False) -> None:
        self.address = address
        self._allow_development = allow_development_attestation
        self._channel = grpc.insecure_channel(address, options=cloudboard.CHANNEL_OPTIONS)
        self._stub = cloudboard_pb2_grpc.CloudBoardStub(self._channel)
        self._key: NodeKey | None = None

    def node_key(self, *, fresh: bool = False) -> NodeKey:
        """The node's verified key; asked for again when it is due.

        Raises AttestationRefused, NodeUnreachable or CallFailed.
        """
        now = time.time()
        if self._key is None or fresh or not self._key.is_fresh(now):
            with typed_errors():
                answer = cloudboard.fetch_attestation(self._channel, ASK_DEADLINE_S)
            self._key = attestation.verify(answer, allow_development=self._allow_development, now_unix_s=now)
        return self._key

    def load(self) -> Load:
        """The load that the node publishes now. Raises NodeUnreachable or CallFailed."""
        with typed_errors():
            return cloudboard.fetch_load(self._channel, ASK_DEADLINE_S)

    def ask(
        self,
        prompt: Prompt,
        sampling: Sampling = GREEDY,
        *,
        timeout_s: float = ANSWER_DEADLINE_S,
        gap_s: float = GAP_DEADLINE_S,
        trace_id: str = "",
    ) -> Answer:
        """Seals the request; iterate over the answer for its events. Raises InvalidRequest at once."""
        return Answer(self, padded(as_request(prompt, sampling)), timeout_s, gap_s, trace_id)

    def complete(self, prompt: Prompt, sampling: Sampling = GREEDY, **limits: Any) -> Collected:
        """The whole answer at once."""
        return collect(self.ask(prompt, sampling, **limits))

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _invoke(self, outgoing: Iterator[cloudboard_pb2.InvokeWorkloadRequest], timeout_s: float) -> Any:
        return self._stub.InvokeWorkload(outgoing, timeout=timeout_s)


class Answer:
    """Iterate over it once. Raises NodeUnreachable or CallFailed where none began, BadAnswer where it was altered.

    An answer that was cut ends with a Truncated event.
    """

    def __init__(self, client: Client, payload: bytes, timeout_s: float, gap_s: float, trace_id: str) -> None:
        self._client = client
        self._payload = payload
        self._ends_at = time.monotonic() + timeout_s
        self._gap_s = gap_s
        self._trace_id = trace_id
        self._outgoing: queue.SimpleQueue[cloudboard_pb2.InvokeWorkloadRequest | None] = queue.SimpleQueue()
        self._watchdog: Watchdog | None = None
        self.was_cancelled = False

    def __iter__(self) -> Iterator[Event]:
        key = self._client.node_key()
        if self.was_cancelled:
            return
        try:
            yield from self._attempt(key)
        except CallFailed as error:
            if not is_stale_key(error) or (renewed := self._client.node_key(fresh=True)).key_id == key.key_id:
                raise
            yield from self._attempt(renewed)

    def cancel(self) -> None:
        """Asks the node to stop; the events until its end still come, for a bounded time. Safe in a signal handler."""
        if not self.was_cancelled:
            self.was_cancelled = True
            if self._watchdog is not None:
                self._outgoing.put(TERMINATE)
                self._watchdog.move(CANCEL_BOUND_S, f"cancelled, and the node did not end within {CANCEL_BOUND_S:g} s")

    def _attempt(self, key: NodeKey) -> Iterator[Event]:
        exchange = Exchange(key, self._payload, self._trace_id)
        for message in exchange.opening():
            self._outgoing.put(message)
        call = self._client._invoke(iter(self._outgoing.get, None), max(0.001, self._ends_at - time.monotonic()))
        watchdog = self._watchdog = Watchdog(call.cancel, self._gap_s, f"nothing came for {self._gap_s:g} s")
        try:
            for message in call:
                if not self.was_cancelled:
                    watchdog.move(self._gap_s)
                yield from exchange.receive(message)
                if exchange.is_over:
                    self._outgoing.put(None)  # half-close, and read on to the call's own end
                    watchdog.move(CLOSE_BOUND_S)
        except grpc.RpcError as error:
            code, details = _status(error, watchdog.reason)
            yield from exchange.fail(code, details)
        else:
            yield from exchange.end()
        finally:
            # A request iterator that stays blocked would keep the interpreter from ending.
            self._outgoing.put(None)
            watchdog.stop()
            call.cancel()
            self._outgoing = queue.SimpleQueue()


def as_request(prompt: Prompt, sampling: Sampling) -> inference_pb2.InferenceRequest:
    """A request as it is, a dialogue, or one user message."""
    if isinstance(prompt, inference_pb2.InferenceRequest):
        return prompt
    messages = [ChatMessage("user", prompt)] if isinstance(prompt, str) else prompt
    return chat_request(messages, sampling)


def _status(error: grpc.RpcError, expired: str) -> tuple[grpc.StatusCode, str]:
    if expired:
        return grpc.StatusCode.DEADLINE_EXCEEDED, expired
    return status_of(error), (error.details() if isinstance(error, grpc.Call) else "") or ""
