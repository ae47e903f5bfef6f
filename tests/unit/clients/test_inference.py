"""The client of the runtime against a Triton that misbehaves: every end is typed, and none hangs."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from tie.api.afm.v1 import afm_pb2
from tie.api.triton import grpc_service_pb2 as pb
from tie.api.triton.grpc_service_pb2_grpc import (
    GRPCInferenceServiceServicer,
    add_GRPCInferenceServiceServicer_to_server,
)
from tie.clients.inference import Generation, InferenceClient, Reply
from tie.contracts.errors import DeadlinePassed, NotReady, PeerError, PeerGone

Behaviour = Callable[[pb.ModelInferRequest, Any], Iterator[pb.ModelStreamInferResponse]]


class FakeTriton(GRPCInferenceServiceServicer):
    def __init__(self, path: Path) -> None:
        self.path = path
        self.behaviour: Behaviour = lambda request, context: iter(())
        self.requests: list[pb.ModelInferRequest] = []
        self.release = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4))
        add_GRPCInferenceServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def ModelReady(self, request: pb.ModelReadyRequest, context: Any) -> pb.ModelReadyResponse:  # noqa: N802
        return pb.ModelReadyResponse(ready=request.name == "afm")

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[pb.ModelStreamInferResponse]:  # noqa: N802
        self.requests.append(next(requests))
        yield from self.behaviour(self.requests[-1], context)

    def stop(self) -> None:
        self.release.set()
        self._server.stop(0).wait(5)


@pytest.fixture
def triton(tmp_path: Path) -> Iterator[FakeTriton]:
    fake = FakeTriton(tmp_path / "t.sock")
    yield fake
    fake.stop()


@pytest.fixture
def client(triton: FakeTriton) -> Iterator[InferenceClient]:
    with InferenceClient(triton.path) as connected:
        connected.connect(5)
        yield connected


def response(tokens: list[int], *, final: bool, counts: list[int] | None = None) -> pb.ModelStreamInferResponse:
    event = afm_pb2.GenerateEvent(
        runs=[afm_pb2.TokenRun(count=count) for count in ([len(tokens)] if counts is None else counts)]
    )
    message = pb.ModelStreamInferResponse()
    inner = message.infer_response
    inner.parameters["triton_final_response"].bool_param = final
    for name, data in (("TOKENS", struct.pack(f"<{len(tokens)}i", *tokens)), ("EVENT", event.SerializeToString())):
        inner.outputs.add(name=name)
        inner.raw_output_contents.append(data)
    return message


def begin(client: InferenceClient, deadline_s: float = 10, gap_s: float = 10) -> Generation:
    params = afm_pb2.GenerateParams(max_tokens=3)
    return client.generate([1, 2, 2**31 - 1], params, deadline_s=deadline_s, token_gap_s=gap_s)


def test_nothing_accepts_calls(tmp_path: Path) -> None:
    with InferenceClient(tmp_path / "absent") as client:
        with pytest.raises(NotReady):
            client.connect(0.2)
        assert not client.is_ready(0.2)
        with pytest.raises(PeerGone):
            list(begin(client, deadline_s=5))


def test_a_stream_that_ends_without_its_final_response(triton: FakeTriton, client: InferenceClient) -> None:
    triton.behaviour = lambda request, context: iter([response([5], final=False)])
    generation = begin(client)
    assert next(generation).tokens == (5,)
    with pytest.raises(PeerError, match="before the final response"):
        next(generation)


def test_tritons_own_refusal_is_typed_and_its_text_is_not_repeated(triton: FakeTriton, client: InferenceClient) -> None:
    triton.behaviour = lambda request, context: iter([pb.ModelStreamInferResponse(error_message="region marker")])
    with pytest.raises(PeerError) as caught:
        list(begin(client))
    assert "marker" not in str(caught.value)


@pytest.mark.parametrize(
    "broken",
    [
        response([5, 6], final=True, counts=[1]),
        response([], final=True, counts=[1]),
        pb.ModelStreamInferResponse(
            infer_response=pb.ModelInferResponse(
                outputs=[pb.ModelInferResponse.InferOutputTensor(name="EVENT")], raw_output_contents=[b"\xff"]
            )
        ),
        pb.ModelStreamInferResponse(
            infer_response=pb.ModelInferResponse(outputs=[pb.ModelInferResponse.InferOutputTensor(name="EVENT")])
        ),
    ],
    ids=["more tokens than runs", "fewer tokens than runs", "no event", "no contents"],
)
def test_replies_that_break_the_protocol(
    triton: FakeTriton, client: InferenceClient, broken: pb.ModelStreamInferResponse
) -> None:
    triton.behaviour = lambda request, context: iter([broken])
    with pytest.raises(PeerError):
        list(begin(client))


def silent(triton: FakeTriton) -> Behaviour:
    def behave(request: pb.ModelInferRequest, context: Any) -> Iterator[pb.ModelStreamInferResponse]:
        yield response([5], final=False)
        triton.release.wait(20)

    return behave


def test_a_gap_between_tokens_has_a_deadline(triton: FakeTriton, client: InferenceClient) -> None:
    triton.behaviour = silent(triton)
    with pytest.raises(DeadlinePassed, match=r"sent nothing for 0\.2 s"):
        list(begin(client, gap_s=0.2))


def test_the_whole_has_a_deadline(triton: FakeTriton, client: InferenceClient) -> None:
    triton.behaviour = silent(triton)
    with pytest.raises(DeadlinePassed, match=r"within 0\.3 s"):
        list(begin(client, deadline_s=0.3))


def test_a_server_that_goes_away(triton: FakeTriton, client: InferenceClient) -> None:
    triton.behaviour = silent(triton)
    generation = begin(client)
    next(generation)
    threading.Thread(target=triton.stop).start()
    with pytest.raises((PeerGone, PeerError)):
        list(generation)


def test_the_first_reason_to_fail_is_the_one_that_is_raised(triton: FakeTriton, client: InferenceClient) -> None:
    triton.behaviour = silent(triton)
    generation = begin(client)
    next(generation)
    generation.fail(PeerGone("the runtime is gone"))
    generation.fail(DeadlinePassed("later"))
    with pytest.raises(PeerGone, match="the runtime is gone"):
        next(generation)


def test_failing_after_the_end_changes_nothing(triton: FakeTriton, client: InferenceClient) -> None:
    triton.behaviour = lambda request, context: iter([response([5], final=True)])
    generation = begin(client)
    assert [reply.tokens for reply in generation] == [(5,)]
    generation.fail(PeerGone("late"))
    with contextlib.suppress(StopIteration):
        next(generation)


def test_a_request_says_what_the_contract_says(triton: FakeTriton, client: InferenceClient) -> None:
    triton.behaviour = lambda request, context: iter([response([7, -1], final=False), response([], final=True)])
    replies = list(begin(client))
    assert [reply.tokens for reply in replies] == [(7, -1), ()]
    (request,) = triton.requests
    assert request.model_name == "afm"
    assert [(t.name, t.datatype, list(t.shape)) for t in request.inputs] == [
        ("TOKENS", "INT32", [3]),
        ("PARAMS", "UINT8", [2]),
    ]
    assert struct.unpack("<3i", request.raw_input_contents[0]) == (1, 2, 2**31 - 1)


def test_readiness_is_the_models(client: InferenceClient) -> None:
    assert client.is_ready(5)


def test_a_reply_does_not_show_its_tokens() -> None:
    assert repr(Reply((12345,), afm_pb2.GenerateEvent())) == "<Reply of 1 tokens>"


def test_a_request_process_needs_no_numpy_for_it() -> None:
    script = "import sys, tie.clients.inference, tie.clients.runtime_link; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.strip() == "False"
