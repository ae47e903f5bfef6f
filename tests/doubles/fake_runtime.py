"""A scripted AFM Runtime on real sockets: Triton's protocol as far as the app speaks it, and the runtime's own link.

A script is given each admitted call and yields what the runtime sends. It honours tickets, aborts and bundle identity
as the real one does, so that a client that forgets them fails here, too.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import grpc

from tie.api.afm.v1 import afm_pb2
from tie.api.runtime_link.v1 import runtime_link_pb2
from tie.api.triton import grpc_service_pb2 as pb
from tie.api.triton.grpc_service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)
from tie.contracts.paths import RunPaths
from tie.contracts.triton_io import EVENT, PARAMS, TOKENS

WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Sent:
    """One response: the tokens of `event.runs`, one after another."""

    tokens: tuple[int, ...] = ()
    event: afm_pb2.GenerateEvent = field(default_factory=afm_pb2.GenerateEvent)


@dataclass(slots=True)
class Call:
    """An admitted request. `aborted` is set by an Abort on its link, or by the link's end."""

    tokens: tuple[int, ...]
    params: afm_pb2.GenerateParams
    aborted: threading.Event = field(default_factory=threading.Event)


Script = Callable[[Call], Iterator[Sent]]


def run(tokens: Sequence[int], choice: int = 0, finish: afm_pb2.FinishReason.ValueType | None = None) -> Sent:
    """Tokens of one choice, with its finish where one is given."""
    event = afm_pb2.GenerateEvent(runs=[afm_pb2.TokenRun(choice=choice, count=len(tokens))])
    if finish is not None:
        event.finishes.add(choice=choice, reason=finish)
    return Sent(tuple(tokens), event)


def usage(prompt: int, completion: int) -> Sent:
    return Sent(event=afm_pb2.GenerateEvent(usage=afm_pb2.Usage(prompt=prompt, completion=completion)))


def says(tokens: Sequence[int], per_step: int = 1, finish: int = afm_pb2.FINISH_REASON_LENGTH) -> Script:
    """The same tokens whatever is asked, a few a step; then the finish and the usage."""

    def script(call: Call) -> Iterator[Sent]:
        for start in range(0, len(tokens), per_step):
            yield run(tokens[start : start + per_step])
        end = afm_pb2.GenerateEvent(usage=afm_pb2.Usage(prompt=len(call.tokens), completion=len(tokens)))
        end.finishes.add(choice=0, reason=finish)
        yield Sent(event=end)

    return script


def fails(kind: afm_pb2.FailureKind.ValueType, message: str = "") -> Script:
    def script(call: Call) -> Iterator[Sent]:
        yield Sent(event=afm_pb2.GenerateEvent(failure=afm_pb2.Failure(kind=kind, message=message)))

    return script


def until_aborted(tokens: Sequence[int] = ()) -> Script:
    """Sends `tokens`, then nothing until it is told to abort."""

    def script(call: Call) -> Iterator[Sent]:
        if tokens:
            yield run(tokens)
        assert call.aborted.wait(WAIT_S), "nobody aborted"
        yield run((), finish=afm_pb2.FINISH_REASON_CANCELLED)
        yield usage(len(call.tokens), len(tokens))

    return script


class FakeRuntime(GRPCInferenceServiceServicer):
    """Serves below `paths` until closed; `calls` are those it admitted."""

    def __init__(self, paths: RunPaths, identity: bytes, script: Script, context_length: int = 512) -> None:
        self.script = script
        self.calls: list[Call] = []
        self._identity = identity
        self._context_length = context_length
        self._live: dict[bytes, threading.Event] = {}
        self._links: list[socket.socket] = []
        paths.triton_socket.parent.mkdir(parents=True, exist_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(paths.runtime_socket))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()
        self._server = grpc.server(ThreadPoolExecutor(8))
        add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{paths.triton_socket}")
        self._server.start()

    def ModelReady(self, request: Any, context: Any) -> pb.ModelReadyResponse:  # noqa: N802  # the service's name
        return pb.ModelReadyResponse(ready=True)

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[pb.ModelStreamInferResponse]:  # noqa: N802
        request: pb.ModelInferRequest = next(requests)
        raw = dict(zip((tensor.name for tensor in request.inputs), request.raw_input_contents, strict=True))
        params = afm_pb2.GenerateParams.FromString(raw[PARAMS])
        call = Call(struct.unpack(f"<{len(raw[TOKENS]) // 4}i", raw[TOKENS]), params)
        for sent in self._admit(call):
            yield _response(sent)
        yield _response(None)

    def drop_links(self) -> None:
        """What the runtime's death looks like to its clients; the server behind it hangs on."""
        for link in self._links:
            link.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listener.close()
        self.drop_links()
        self._server.stop(0).wait(WAIT_S)
        for link in self._links:
            link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _admit(self, call: Call) -> Iterator[Sent]:
        aborted = self._live.pop(call.params.ticket, None)
        if aborted is None:
            return fails(afm_pb2.FAILURE_KIND_NO_TICKET)(call)
        if call.params.bundle_identity != self._identity:
            return fails(afm_pb2.FAILURE_KIND_OTHER_BUNDLE)(call)
        call.aborted = aborted
        self.calls.append(call)
        return self.script(call)

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listener.accept()
            except OSError:
                return  # closed
            ticket, aborted = os.urandom(16), threading.Event()
            self._live[ticket] = aborted
            self._links.append(link)
            welcome = runtime_link_pb2.Welcome(
                ticket=ticket, bundle_identity=self._identity, context_length=self._context_length
            )
            link.send(runtime_link_pb2.FromRuntime(welcome=welcome).SerializeToString())
            threading.Thread(target=_watch, args=(link, aborted), daemon=True).start()


def _watch(link: socket.socket, aborted: threading.Event) -> None:
    with contextlib.suppress(OSError):
        link.recv(4096)  # an Abort, or the end
    aborted.set()


def _response(sent: Sent | None) -> pb.ModelStreamInferResponse:
    """None is the empty final response of a decoupled model."""
    response = pb.ModelInferResponse(model_name="afm")
    response.parameters["triton_final_response"].bool_param = sent is None
    if sent is not None:
        event = sent.event.SerializeToString()
        response.outputs.add(name=TOKENS, datatype="INT32", shape=[len(sent.tokens)])
        response.outputs.add(name=EVENT, datatype="UINT8", shape=[len(event)])
        response.raw_output_contents.extend((struct.pack(f"<{len(sent.tokens)}i", *sent.tokens), event))
    return pb.ModelStreamInferResponse(infer_response=response)
