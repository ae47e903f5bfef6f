"""The host of the runtime when something dies, hangs or is told to stop: bounded, typed, and nothing of it left."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from doubles.running_runtime import MODEL, Call, RunningRuntime, is_running, running_runtime, wait_until
from doubles.scripted_engine import ECHO, EOS, RAISES, SLOW

from tie.afm_runtime.host import End
from tie.api.triton import grpc_service_pb2 as pb
from tie.clients.inference import InferenceClient
from tie.contracts.errors import NotReady, PeerGone, TieError

SEEN_WITHIN_S = 1.0


@pytest.fixture
def runtime() -> Iterator[RunningRuntime]:
    with running_runtime() as running:
        yield running


@pytest.fixture
def stopped() -> Iterator[Path]:
    """A run directory for a runtime that a test starts itself."""
    run_dir = Path(tempfile.mkdtemp(prefix="tie-afm-"))
    yield run_dir
    shutil.rmtree(run_dir, ignore_errors=True)


def in_mid_answer(runtime: RunningRuntime, client: InferenceClient) -> Call:
    call = Call(runtime, client, [SLOW], max_tokens=250)
    call.link.watch(lambda: call.replies.fail(PeerGone("the runtime is gone")))
    call.next()
    return call


@pytest.mark.parametrize(("victim", "end"), [("stub", End.RUNTIME_GONE), ("server", End.SERVER_GONE)])
@pytest.mark.parametrize("is_busy", [False, True])
def test_a_killed_part_ends_the_whole_and_the_client_knows_within_a_second(
    runtime: RunningRuntime, victim: str, end: End, is_busy: bool
) -> None:
    pid = runtime.stub_pid if victim == "stub" else runtime.server_pid
    with InferenceClient(runtime.paths.triton_socket) as client, runtime.link() as idle:
        call = in_mid_answer(runtime, client) if is_busy else None
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        assert idle.wait_gone(SEEN_WITHIN_S)
        if call is not None:
            with pytest.raises(PeerGone):
                call.collect()
            assert time.monotonic() - killed < SEEN_WITHIN_S
        assert runtime.host.wait(10) == end.value
    assert runtime.leftovers() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_runtime_stops_and_leaves_nothing(runtime: RunningRuntime, number: int) -> None:
    before = set(Path("/tmp").glob("python_env_*"))
    with InferenceClient(runtime.paths.triton_socket) as client:
        assert Call(runtime, client, [ECHO, 5]).collect().tokens == [5, EOS]
    assert runtime.stop(number) == End.STOPPED.value
    assert runtime.leftovers() == []
    assert not list(Path("/dev/shm").glob("triton_python_backend_shm_region_tie_*"))
    assert set(Path("/tmp").glob("python_env_*")) <= before


def test_a_stop_in_mid_answer_is_bounded_and_the_stream_ends_typed() -> None:
    with running_runtime(stop_timeout_s=1.0) as runtime, InferenceClient(runtime.paths.triton_socket) as client:
        call = in_mid_answer(runtime, client)
        began = time.monotonic()
        runtime.host.send_signal(signal.SIGTERM)
        with contextlib.suppress(PeerGone):
            call.collect()  # it may have finished within the bound
        assert runtime.host.wait(5) in {End.STOPPED.value, End.OVERDUE.value}
        assert time.monotonic() - began < 5
        assert runtime.leftovers() == []


def test_a_client_that_never_reads_does_not_hold_up_the_stop() -> None:
    with running_runtime(stop_timeout_s=1.0) as runtime, InferenceClient(runtime.paths.triton_socket) as client:
        call = Call(runtime, client, [SLOW], max_tokens=250)
        call.next()
        runtime.host.send_signal(signal.SIGTERM)
        assert runtime.host.wait(6) in {End.STOPPED.value, End.OVERDUE.value}
        assert runtime.leftovers() == []
        call.give_up()


def test_told_twice_it_stops_at_once(runtime: RunningRuntime) -> None:
    with InferenceClient(runtime.paths.triton_socket) as client:
        call = in_mid_answer(runtime, client)
        runtime.host.send_signal(signal.SIGTERM)
        wait_until(lambda: bool(runtime.events("host.stopping")))
        runtime.host.send_signal(signal.SIGTERM)
        assert runtime.host.wait(3) == End.OVERDUE.value
        call.give_up()
    assert runtime.leftovers() == []


def test_a_killed_host_takes_everything_with_it_and_the_next_start_cleans_up(stopped: Path) -> None:
    runtime = RunningRuntime(stopped)
    runtime.start()
    runtime.wait_ready()
    server, stub = runtime.server_pid, runtime.stub_pid
    with InferenceClient(runtime.paths.triton_socket) as client:
        call = in_mid_answer(runtime, client)
        os.kill(runtime.host.pid, signal.SIGKILL)
        runtime.host.wait(5)
        with pytest.raises(PeerGone):
            call.collect()
    wait_until(lambda: not is_running(server) and not is_running(stub), 3)
    runtime.log.unlink()
    runtime.start()
    runtime.wait_ready()
    assert runtime.events("host.cleaned")
    with InferenceClient(runtime.paths.triton_socket) as client:
        assert Call(runtime, client, [ECHO, 5]).collect().tokens == [5, EOS]
    assert runtime.stop() == End.STOPPED.value
    assert runtime.leftovers() == []


@pytest.mark.parametrize(
    "broken", ["raise ImportError('no')", "import time; time.sleep(3600)", "import os; os._exit(1)"]
)
def test_a_model_that_does_not_load_is_a_bounded_failure_with_a_reason(stopped: Path, broken: str) -> None:
    runtime = RunningRuntime(stopped, model=broken + "\n" + MODEL, ready_timeout_s=3.0)
    runtime.start()
    assert runtime.host.wait(12) == End.NOT_READY.value
    assert runtime.events("host.not_ready") or runtime.events("triton.says")
    assert not is_running(runtime.server_pid)
    assert not list(runtime.paths.triton_socket.parent.iterdir())


def test_without_privileges_it_serves_and_stops_alike(stopped: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("every other test runs without privileges already")
    runtime = RunningRuntime(stopped)
    runtime.start("setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin")
    runtime.wait_ready()
    with InferenceClient(runtime.paths.triton_socket) as client:
        assert Call(runtime, client, [ECHO, 5]).collect().tokens == [5, EOS]
    assert runtime.stop() == End.STOPPED.value
    assert runtime.leftovers() == []


def test_an_unusable_configuration_does_not_start(stopped: Path) -> None:
    runtime = RunningRuntime(stopped, step_token_budget=4, max_running=8)
    runtime.start()
    assert runtime.host.wait(5) == 2
    assert runtime.events("host.not_started")


def test_a_stub_that_finds_its_engine_suspect_ends_and_the_host_says_so(runtime: RunningRuntime) -> None:
    with InferenceClient(runtime.paths.triton_socket) as client:
        for _ in range(3):
            try:
                Call(runtime, client, [RAISES]).collect()
            except TieError:
                break  # the third may end the process before its answer is out
    assert runtime.host.wait(5) == End.RUNTIME_GONE.value
    assert runtime.events("engine.suspect")
    assert runtime.leftovers() == []


def test_a_shape_that_overflows_may_end_the_runtime_but_never_quietly(runtime: RunningRuntime) -> None:
    """Known of this Triton: such a shape kills the stub before our code sees it. Then the host ends, and says so."""
    message = pb.ModelInferRequest(model_name="afm")
    message.inputs.add(name="TOKENS", datatype="INT32", shape=[2**62 + 2])
    message.inputs.add(name="PARAMS", datatype="UINT8", shape=[1])
    message.raw_input_contents.extend([bytes(8), b"x"])
    with InferenceClient(runtime.paths.triton_socket) as client, runtime.link() as link:
        with contextlib.suppress(grpc.RpcError):
            assert list(client._stub.ModelStreamInfer(iter([message]), timeout=2))
        if link.wait_gone(1):
            assert runtime.host.wait(5) == End.RUNTIME_GONE.value
            assert runtime.leftovers() == []
        else:
            assert Call(runtime, client, [ECHO, 5]).collect().tokens == [5, EOS]


def test_a_connection_before_anything_serves(stopped: Path) -> None:
    runtime = RunningRuntime(stopped)
    with pytest.raises(NotReady):
        runtime.link()
