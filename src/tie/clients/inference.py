"""Runs one request on the AFM Runtime, over the part of Triton's protocol that this needs. No NumPy: every request's
own process imports it.

A stream is read to its end: a client that leaves early keeps the model from unloading. Whoever loses interest aborts on
the runtime link and goes on reading; only a passed deadline, or a runtime that is gone, cancels the call itself.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc
from google.protobuf.message import DecodeError

from tie.api.afm.v1 import afm_pb2
from tie.api.triton import grpc_service_pb2 as pb
from tie.api.triton.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tie.contracts import triton_io
from tie.contracts.errors import DeadlinePassed, NotReady, PeerError, PeerGone, TieError

CHANNEL_OPTIONS: Final = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel to a restarted runtime inherits no back-off of an old one
)


@dataclass(frozen=True, slots=True, repr=False)
class Reply:
    """One response of the runtime: `tokens` holds the runs of `event`, one after another."""

    tokens: tuple[int, ...]
    event: afm_pb2.GenerateEvent

    def __repr__(self) -> str:
        return f"<Reply of {len(self.tokens)} tokens>"


class InferenceClient:
    """A channel to the runtime's Triton. Connect at warm-up; one client may run several requests."""

    def __init__(self, socket_path: Path) -> None:
        self._channel = grpc.insecure_channel(f"unix:{socket_path}", options=CHANNEL_OPTIONS)
        self._stub = GRPCInferenceServiceStub(self._channel)

    def connect(self, timeout_s: float) -> None:
        """Waits until the server accepts calls. Raises NotReady past `timeout_s`."""
        try:
            grpc.channel_ready_future(self._channel).result(timeout=timeout_s)
        except grpc.FutureTimeoutError as error:
            raise NotReady(f"triton accepted no connection within {timeout_s:g} s") from error

    def is_ready(self, timeout_s: float) -> bool:
        """Whether the server says that the model is loaded. No proof of life: a dead stub goes unnoticed."""
        try:
            return bool(self._stub.ModelReady(pb.ModelReadyRequest(name=triton_io.MODEL_NAME), timeout=timeout_s).ready)
        except grpc.RpcError:
            return False

    def generate(
        self, tokens: Sequence[int], params: afm_pb2.GenerateParams, *, deadline_s: float, token_gap_s: float
    ) -> Generation:
        """Starts a request; iterate over the result to the end, on one thread."""
        call = self._stub.ModelStreamInfer(iter((_request(tokens, params),)), timeout=deadline_s)
        return Generation(call, deadline_s, token_gap_s)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class Generation:
    """The replies of one request, as they come. The first error of any cause is the one that iteration raises.

    Raises DeadlinePassed (`deadline_s` in all, `token_gap_s` between two replies), PeerGone (the server ended),
    PeerError (it broke the protocol, or ended the stream before its final response), or what `fail` was given.
    """

    def __init__(self, call: Any, deadline_s: float, token_gap_s: float) -> None:
        self._call = call
        self._deadline_s = deadline_s
        self._gap_s = token_gap_s
        self._failure: TieError | None = None
        self._is_final = False
        self._ended = threading.Event()
        self._last_reply = time.monotonic()
        threading.Thread(target=self._watch_gap, name="token-gap", daemon=True).start()

    def fail(self, reason: TieError) -> None:
        """Ends the request with this error, from any thread. Only for a runtime that is gone or a deadline passed."""
        if self._failure is None and not self._ended.is_set():
            self._failure = reason
            self._call.cancel()

    def __iter__(self) -> Iterator[Reply]:
        return self

    def __next__(self) -> Reply:
        try:
            message = next(self._call)
        except StopIteration:
            self._ended.set()
            if not self._is_final:
                raise self._failure or PeerError("triton ended the stream before the final response") from None
            raise
        except grpc.RpcError as error:
            self._ended.set()
            raise self._failure or self._typed(error) from error
        self._last_reply = time.monotonic()
        return self._reply(message)

    def _reply(self, message: pb.ModelStreamInferResponse) -> Reply:
        if message.error_message:  # its text may name sizes or regions of the server: not ours to repeat
            raise PeerError("triton refused or lost the request")
        response = message.infer_response
        self._is_final = response.parameters["triton_final_response"].bool_param
        if len(response.outputs) != len(response.raw_output_contents):
            raise PeerError("triton sent outputs without their contents")
        found = {output.name: raw for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)}
        try:
            event = afm_pb2.GenerateEvent.FromString(found.get(triton_io.EVENT, b""))
        except DecodeError as error:
            raise PeerError("the runtime's event cannot be parsed") from error
        raw = found.get(triton_io.TOKENS, b"")
        if len(raw) % 4 or sum(run.count for run in event.runs) != len(raw) // 4:
            raise PeerError(f"the runtime sent {len(raw)} bytes of tokens, which its runs do not account for")
        return Reply(struct.unpack(f"<{len(raw) // 4}i", raw), event)

    def _watch_gap(self) -> None:
        while not self._ended.wait(max(0.001, self._last_reply + self._gap_s - time.monotonic())):
            if time.monotonic() >= self._last_reply + self._gap_s:
                self.fail(DeadlinePassed(f"the runtime sent nothing for {self._gap_s:g} s"))
                return

    def _typed(self, error: grpc.RpcError) -> TieError:
        code = error.code() if isinstance(error, grpc.Call) else None
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlinePassed(f"the runtime did not finish within {self._deadline_s:g} s")
        if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
            return PeerGone("triton ended the connection in mid-answer")
        return PeerError(f"triton ended the stream with {code.name if code else 'no status'}")


def _request(tokens: Sequence[int], params: afm_pb2.GenerateParams) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=triton_io.MODEL_NAME)
    raw = {triton_io.TOKENS: struct.pack(f"<{len(tokens)}i", *tokens), triton_io.PARAMS: params.SerializeToString()}
    for name, data in raw.items():
        kind = triton_io.INPUTS[name]
        tensor = message.inputs.add(name=name, datatype=kind)
        tensor.shape.append(len(data) // _ITEM_BYTES[kind])
        message.raw_input_contents.append(data)
    return message


_ITEM_BYTES: Final = {"INT32": 4, "UINT8": 1}
