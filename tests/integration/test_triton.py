"""The runtime in real Triton, called as a request process calls it, by its own client and by NVIDIA's messages."""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from doubles.nvidia_protocol import service_file
from doubles.running_runtime import Call, RunningRuntime, running_runtime, wait_until
from doubles.runtime_calls import name, params
from doubles.scripted_engine import CONTEXT, ECHO, EOS, IDENTITY, NEVER_ENDS, NOT_FINITE, RAISES, SLOW, next_token
from google.protobuf.message_factory import GetMessageClass

from tie.afm_runtime.forwarding import RowSampling, SamplingRules
from tie.api.afm.v1 import afm_pb2
from tie.api.triton import grpc_service_pb2 as pb
from tie.api.triton.grpc_service_pb2_grpc import GRPCInferenceServiceStub
from tie.clients.inference import InferenceClient

PROMPT = [20, 21, 22, 23, 24, 25, 26]


@pytest.fixture(scope="module")
def runtime() -> Iterator[RunningRuntime]:
    with running_runtime() as running:
        yield running


@pytest.fixture
def client(runtime: RunningRuntime) -> Iterator[InferenceClient]:
    with InferenceClient(runtime.paths.triton_socket) as connected:
        connected.connect(5)
        yield connected
        # Whatever a test did: the next request is served, and no block is missing for the largest one there is.
        assert Call(runtime, connected, [NEVER_ENDS], max_tokens=CONTEXT).collect().tokens == [5] * (CONTEXT - 1)


def expected(prompt: list[int], count: int, **rules: Any) -> list[int]:
    tokens = list(prompt)
    row = RowSampling(SamplingRules(**rules), 0, np.zeros(0, np.int32), len(prompt))
    for _ in range(count):
        tokens.append(next_token(tokens, row))
    return tokens[len(prompt) :]


# Refusals.


def raw_call(runtime: RunningRuntime, *tensors: tuple[str, str, list[int], bytes]) -> afm_pb2.Failure | str:
    """Inputs as given; what came back: the runtime's failure, or that Triton itself refused."""
    message = pb.ModelInferRequest(model_name="afm")
    for tensor_name, kind, shape, data in tensors:
        message.inputs.add(name=tensor_name, datatype=kind, shape=shape)
        message.raw_input_contents.append(data)
    with grpc.insecure_channel(f"unix:{runtime.paths.triton_socket}") as channel:
        replies = list(GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([message]), timeout=10))
    if replies[-1].error_message:
        return "refused by triton"
    outputs = replies[-1].infer_response
    event = dict(zip([o.name for o in outputs.outputs], outputs.raw_output_contents, strict=True))["EVENT"]
    return afm_pb2.GenerateEvent.FromString(event).failure


def params_tensor(message: afm_pb2.GenerateParams) -> tuple[str, str, list[int], bytes]:
    data = message.SerializeToString()
    return "PARAMS", "UINT8", [len(data)], data


def test_no_ticket_no_admission(runtime: RunningRuntime, client: InferenceClient) -> None:
    for ticket in (b"", bytes(16), b"x" * 15):
        call = Call(runtime, client, PROMPT, ticket=ticket).collect()
        assert (call.failure, call.tokens) == ("NO_TICKET", [])


def test_a_ticket_admits_one_request(runtime: RunningRuntime, client: InferenceClient) -> None:
    with runtime.link() as link:
        assert Call(runtime, client, [ECHO, 5], ticket=link.ticket).collect().tokens == [5, EOS]
        assert Call(runtime, client, [ECHO, 5], ticket=link.ticket).collect().failure == "NO_TICKET"


def test_a_ticket_ends_with_its_connection(runtime: RunningRuntime, client: InferenceClient) -> None:
    with runtime.link() as link:
        ticket = link.ticket

    def is_refused() -> bool:
        return Call(runtime, client, [ECHO, 5], ticket=ticket).collect().failure == "NO_TICKET"

    assert is_refused() or is_refused()  # the runtime may hear of the end a moment later


def test_another_bundles_request_is_refused(runtime: RunningRuntime, client: InferenceClient) -> None:
    assert Call(runtime, client, PROMPT, bundle_identity=bytes(32)).collect().failure == "OTHER_BUNDLE"


@pytest.mark.parametrize("missing", ["TOKENS", "PARAMS"])
def test_a_missing_input_is_a_typed_failure(runtime: RunningRuntime, client: InferenceClient, missing: str) -> None:
    with runtime.link() as link:
        tensors = [("TOKENS", "INT32", [1], struct.pack("<i", 5)), params_tensor(params(link.ticket))]
        failure = raw_call(runtime, *[tensor for tensor in tensors if tensor[0] != missing])
    assert failure == "refused by triton" or failure.message == f"{missing}: is missing"


@pytest.mark.parametrize(
    "tensor",
    [
        ("TOKENS", "INT32", [0], b""),
        ("TOKENS", "INT32", [1, 1], struct.pack("<i", 5)),
        ("TOKENS", "INT32", [3], struct.pack("<i", 5)),
        ("TOKENS", "INT32", [-1], struct.pack("<i", 5)),
        ("TOKENS", "INT64", [1], bytes(8)),
        ("TOKENS", "UINT8", [4], bytes(4)),
        ("TOKENS", "INT32", [CONTEXT], bytes(4 * CONTEXT)),
        ("TOKENS", "INT32", [1_000_000], bytes(4_000_000)),
        ("IMAGES", "UINT8", [1], b"x"),
        ("PARAMS", "UINT8", [300_000], bytes(300_000)),
        ("STRANGE", "INT32", [1], bytes(4)),
    ],
)
def test_tensors_out_of_contract_are_refused(
    runtime: RunningRuntime, client: InferenceClient, tensor: tuple[str, str, list[int], bytes]
) -> None:
    with runtime.link() as link:
        plain = [("TOKENS", "INT32", [1], struct.pack("<i", ECHO)), params_tensor(params(link.ticket))]
        failure = raw_call(runtime, tensor, *[other for other in plain if other[0] != tensor[0]])
    if isinstance(failure, afm_pb2.Failure):
        assert name(failure.kind) in {"INVALID", "TOO_LONG"}


@pytest.mark.parametrize(
    "changes",
    [
        {"max_tokens": 0},
        {"max_tokens": None},
        {"max_tokens": 2**31 - 1},
        {"min_tokens": 17},
        {"n": 0},
        {"n": 9},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_p": 0.0},
        {"top_p": float("nan")},
        {"stop_token_ids": [-5]},
        {"stop_strings": [b""]},
        {"logit_bias": {2**31 - 1: 1.0}},
    ],
    ids=str,
)
def test_degenerate_parameters_are_that_requests_failure(
    runtime: RunningRuntime, client: InferenceClient, changes: dict[str, Any]
) -> None:
    """Faults 8 and 11; the fixture's last request proves that the next one is served and no block is lost."""
    mate = Call(runtime, client, PROMPT, max_tokens=30)
    assert Call(runtime, client, PROMPT, **changes).collect().failure == "INVALID"
    assert mate.collect().tokens == expected(PROMPT, 30)


def test_an_empty_prompt_and_one_too_long(runtime: RunningRuntime, client: InferenceClient) -> None:
    """Fault 9."""
    assert Call(runtime, client, []).collect().failure == "INVALID"
    assert Call(runtime, client, [5] * CONTEXT).collect().failure == "TOO_LONG"
    assert Call(runtime, client, [5] * (CONTEXT + 1)).collect().failure == "TOO_LONG"
    assert len(Call(runtime, client, [5] * (CONTEXT - 1)).collect().tokens) == 1


def test_a_bad_row_and_a_bad_step_change_nobody_elses_tokens(runtime: RunningRuntime, client: InferenceClient) -> None:
    """Fault 11: the row's mates go on; a step that raises ends what ran in it and nothing later."""
    mates = [Call(runtime, client, [30 + n, 5], max_tokens=40, temperature=1.0, seed=n) for n in range(5)]
    assert Call(runtime, client, [NOT_FINITE, 1]).collect().failure == "NOT_FINITE"
    for n, mate in enumerate(mates):
        assert mate.collect().tokens == expected([30 + n, 5], 40, temperature=1.0, seed=n)
    assert Call(runtime, client, [RAISES]).collect().failure == "INTERNAL"


# Cancelling.


@pytest.mark.parametrize("how", ["abort", "close"])
def test_the_link_ends_a_running_request(runtime: RunningRuntime, client: InferenceClient, how: str) -> None:
    call = Call(runtime, client, [SLOW], max_tokens=CONTEXT)
    call.next()
    if how == "abort":
        call.link.abort()
    else:
        call.link.close()
    call.collect()
    assert call.reason == "CANCELLED"
    assert len(call.tokens) < 200


def test_a_cancelled_call_ends_its_request(runtime: RunningRuntime, client: InferenceClient) -> None:
    before = len(runtime.events("request.ended"))
    call = Call(runtime, client, [SLOW], max_tokens=CONTEXT)
    call.next()
    call.replies._call.cancel()
    wait_until(lambda: len(runtime.events("request.ended")) > before)
    assert runtime.events("request.ended")[-1]["completion_tokens"] < 200
    call.link.close()


def test_a_deadline_ends_a_running_request(runtime: RunningRuntime, client: InferenceClient) -> None:
    call = Call(runtime, client, [SLOW], max_tokens=CONTEXT, deadline_ms=100).collect()
    assert call.failure == "DEADLINE"


# The ordinary way.


def test_tokens_arrive_as_the_model_made_them(runtime: RunningRuntime, client: InferenceClient) -> None:
    call = Call(runtime, client, PROMPT, max_tokens=200).collect()
    assert call.tokens == expected(PROMPT, 200)
    assert call.reason == "LENGTH"
    assert (call.events[-1].usage.prompt, call.events[-1].usage.completion) == (len(PROMPT), 200)


def test_a_stop_string_ends_the_answer_and_says_where(runtime: RunningRuntime, client: InferenceClient) -> None:
    call = Call(runtime, client, [ECHO, 11, 12, 13, 14], stop_strings=[b"none", b"2><13"]).collect()
    assert call.tokens == [11, 12, 13]
    assert call.reason == "STOP_STRING"
    (finish,) = [finish for event in call.events for finish in event.finishes]
    assert (finish.stop_index, finish.stop_byte_offset) == (1, len(b"<11><1"))


def test_choices_and_log_probabilities(runtime: RunningRuntime, client: InferenceClient) -> None:
    call = Call(runtime, client, PROMPT, n=3, temperature=1.0, logprobs=1, max_tokens=10).collect()
    runs = [run for event in call.events for run in event.runs]
    assert {run.choice for run in runs} == {0, 1, 2}
    assert sum(run.count for run in runs) == 30 == sum(len(run.logprobs) for run in runs)
    assert sorted(finish.choice for event in call.events for finish in event.finishes) == [0, 1, 2]


def test_many_at_a_time_each_get_their_own_answer(runtime: RunningRuntime) -> None:
    def one(n: int) -> bool:
        prompt = [40 + n] * (n + 1)
        with InferenceClient(runtime.paths.triton_socket) as own:
            call = Call(runtime, own, prompt, max_tokens=25, temperature=1.0, seed=n).collect()
        return call.tokens == expected(prompt, 25, temperature=1.0, seed=n)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(one, range(48)))


def test_more_than_fit_and_wait_are_answered_busy(runtime: RunningRuntime, client: InferenceClient) -> None:
    calls = [Call(runtime, client, [SLOW], max_tokens=60, n=2) for _ in range(24)]
    failures = [call.collect().failure for call in calls]
    assert set(failures) == {"", "BUSY"}


# Triton's service, RPC by RPC, as a peer that may connect would call it.


ALLOWED = {"ServerLive", "ServerReady", "ModelReady", "ModelStreamInfer", "ModelInfer"}


def test_every_rpc_but_health_and_inference_is_refused(runtime: RunningRuntime) -> None:
    descriptor = service_file().services_by_name["GRPCInferenceService"]
    assert len(descriptor.methods) >= 20
    answered = set()
    with grpc.insecure_channel(f"unix:{runtime.paths.triton_socket}") as channel:
        for method in descriptor.methods:
            request = GetMessageClass(method.input_type)()
            if "name" in method.input_type.fields_by_name:
                request.name = "afm"
            try:
                if method.client_streaming:
                    call = channel.stream_stream(f"/{descriptor.full_name}/{method.name}")
                    list(call(iter(()), timeout=5))
                else:
                    call = channel.unary_unary(f"/{descriptor.full_name}/{method.name}")
                    call(request.SerializeToString(), timeout=5)
                answered.add(method.name)
            except grpc.RpcError as error:
                if "restricted" not in error.details():
                    answered.add(method.name)
    assert answered <= ALLOWED
    assert {"ServerLive", "ModelStreamInfer"} <= answered


def test_no_shared_memory_region_is_visible_from_outside(runtime: RunningRuntime) -> None:
    if runtime.events("host.shm_is_shared"):
        pytest.skip("no mount namespace may be made here")
    assert not list(Path("/dev/shm").glob("triton_python_backend_shm_region_tie_*"))


def test_nothing_listens_on_a_network(runtime: RunningRuntime) -> None:
    inodes = set()
    for pid in (runtime.server_pid, runtime.stub_pid):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(fd.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    for table in ("tcp", "tcp6", "udp", "udp6"):
        lines = Path(f"/proc/{runtime.server_pid}/net/{table}").read_text().splitlines()[1:]
        assert not [line for line in lines if line.split()[9] in inodes]


def test_the_directory_and_sockets_are_for_owner_and_group(runtime: RunningRuntime) -> None:
    assert runtime.paths.triton_socket.parent.stat().st_mode & 0o7777 == 0o2750
    for path in (runtime.paths.triton_socket, runtime.paths.runtime_socket):
        assert path.stat().st_mode & 0o007 == 0


def test_no_token_or_marker_is_in_the_log(runtime: RunningRuntime, client: InferenceClient) -> None:
    marker = b"markerinstop"
    Call(runtime, client, [ECHO, 777], stop_strings=[marker]).collect()
    Call(runtime, client, [ECHO, 777], stop_strings=[marker], n=0).collect()
    Call(runtime, client, [RAISES, 777], stop_strings=[marker]).collect()
    with runtime.link() as link:
        raw_call(runtime, ("PARAMS", "UINT8", [12], marker), ("TOKENS", "INT32", [1], bytes(4)))
        ticket = link.ticket
    log = runtime.log.read_bytes()
    assert marker not in log
    assert ticket.hex().encode() not in log
    lines = [json.loads(line) for line in log.splitlines()]
    assert not [line for line in lines if 777 in line.values()]
    assert IDENTITY not in log


def test_threads_of_the_client_end_with_it(runtime: RunningRuntime, client: InferenceClient) -> None:
    Call(runtime, client, [ECHO, 5]).collect()
    wait_until(lambda: not [t for t in threading.enumerate() if t.name == "token-gap"])
