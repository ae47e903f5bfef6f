"""cloudboardd, its helpers and key protection as real processes: states, deaths, keys, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from doubles.device import Device, NodeKey, parameters, request_chunk, terminate
from doubles.edge_node import EdgeNode, alive, short_directory, until

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.api.key_protection.v1 import key_protection_pb2 as kp
from tie.api.key_protection.v1 import key_protection_pb2_grpc as kp_rpc
from tie.contracts.errors import ConfigError
from tie.contracts.telemetry import FIELDS
from tie.envelope.framing import Outcome

Code = grpc.StatusCode
CALL_AS_ANOTHER_UID = """
import os, sys
import grpc, grpc._channel
os.setgid(4242); os.setuid(4242)
with grpc.insecure_channel("unix:" + sys.argv[1]) as channel:
    try:
        channel.unary_unary(sys.argv[2])(b"", timeout=10)
    except grpc.RpcError as error:
        print(error.code().name)
"""


def on_node(scenario: Callable[[EdgeNode], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        with short_directory() as directory:
            async with EdgeNode(Path(directory), **settings) as node:
                await scenario(node)

    asyncio.run(run())


async def serves(node: EdgeNode) -> None:
    answer = await node.device.ask(b"echo still here")
    assert (answer.status, answer.outcome, answer.messages) == (Code.OK, Outcome.OK, [b"still here"]), answer


async def refused(node: EdgeNode, code: grpc.StatusCode, about: str) -> None:
    answer = await node.device.ask(b"echo no")
    assert (answer.status, answer.messages) == (code, []), answer
    assert about in answer.details


async def ask_with(device: Device, key: NodeKey) -> grpc.StatusCode:
    """A whole request to a key that was fetched earlier."""
    session = key.seal()
    stream = device.open(session)
    await stream.setup()
    await stream.send(parameters(session.wrapped_key, key.key_id))
    for part in session.seal_message(b"echo hello"):
        await stream.send(request_chunk(part.payload, part.is_final))
    return (await stream.finish()).status


async def settled(node: EdgeNode, *processes: psutil.Process) -> list[int]:
    """The number of fds of each process, once the pool of two is full and the numbers stay as they are."""
    seen: list[list[int]] = []

    def is_settled() -> bool:
        warm = [line["count"] for line in node.log("cloudboardd") if line["event"] == "pair.warm"]
        seen.append([process.num_fds() for process in processes])
        return len(node.helpers()) == 2 and warm[-1] == 2 and len(seen) > 40 and seen[-40:] == [seen[-1]] * 40

    await until(is_settled, "a full pool and fds that stay as many")
    return seen[-1]


# deaths


def test_a_killed_helper_is_a_typed_error_and_its_app_is_gone() -> None:
    async def scenario(node: EdgeNode) -> None:
        stream = await node.device.begin(b"drip 20")
        while not await stream.read_one():
            pass
        node.helpers()[0].kill()
        answer = await stream.finish()
        assert (answer.status, answer.outcome) == (Code.INTERNAL, None)
        assert "helper" in answer.details
        await node.event("ended")
        await serves(node)

    on_node(scenario)


def test_a_killed_app_is_an_internal_error_in_the_summary_and_what_was_sent_stands() -> None:
    async def scenario(node: EdgeNode) -> None:
        answer = await node.device.ask(b"crash")
        assert (answer.status, answer.outcome, answer.messages) == (Code.OK, Outcome.INTERNAL_ERROR, [b"begun"])
        for misbehaviour in (b"garbage", b"huge", b"outcome 0"):
            answer = await node.device.ask(misbehaviour)
            assert (answer.status, answer.outcome) == (Code.OK, Outcome.INTERNAL_ERROR), misbehaviour
        stream = await node.device.begin(b"drip 20")
        while not await stream.read_one():
            pass
        node.kill("app")
        answer = await stream.finish()
        assert (answer.status, answer.outcome) == (Code.OK, Outcome.INTERNAL_ERROR)
        await node.serving(False)
        await refused(node, Code.UNAVAILABLE, "not ready")
        node.start_app()
        await node.serving()
        await serves(node)

    on_node(scenario)


def test_a_killed_key_protection_makes_the_node_not_ready_until_there_are_new_keys() -> None:
    async def scenario(node: EdgeNode) -> None:
        old = await node.device.fetch()
        stream = await node.device.begin(b"drip 20")
        while not await stream.read_one():
            pass
        node.kill("key_protection")
        await node.serving(False)
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await node.device.fetch()
        assert refusal.value.code() is Code.UNAVAILABLE
        assert await stream.read_one()  # what was opened before goes on
        node.start("key_protection", "tie.cloudboard.key_protection")
        await node.serving()
        assert (await node.device.fetch()).key_id != old.key_id
        assert await ask_with(node.device, old) is Code.INVALID_ARGUMENT
        await stream.send(terminate())
        assert (await stream.finish()).status is Code.CANCELLED
        await serves(node)

    on_node(scenario)


def test_a_stopped_key_protection_is_not_a_connected_one() -> None:
    async def scenario(node: EdgeNode) -> None:
        node.processes["key_protection"].send_signal(signal.SIGSTOP)
        await node.serving(False)
        node.processes["key_protection"].send_signal(signal.SIGCONT)
        await node.serving()
        await serves(node)

    on_node(scenario)


def test_a_killed_cloudboardd_takes_helpers_and_keys_with_it() -> None:
    async def scenario(node: EdgeNode) -> None:
        old = await node.device.fetch()
        stream = await node.device.begin(b"drip 20")
        while not await stream.read_one():
            pass
        helpers = node.helpers()
        node.kill("cloudboardd")
        assert (await stream.finish()).status is Code.UNAVAILABLE
        _, left = await asyncio.to_thread(psutil.wait_procs, helpers, 10)
        assert not left
        await node.event("teardown")
        await until(lambda: any(line["event"] == "custody.ended" for line in node.log("key_protection")), "the end")
        await node.device.close()
        await node.start_cloudboardd()
        assert await ask_with(node.device, old) is Code.INVALID_ARGUMENT
        await serves(node)

    on_node(scenario)


def test_a_stopped_app_is_ended_by_the_idle_limit() -> None:
    async def scenario(node: EdgeNode) -> None:
        stream = await node.device.begin(b"drip 20")
        while not await stream.read_one():
            pass
        node.processes["app"].send_signal(signal.SIGSTOP)
        answer = await stream.finish()
        node.processes["app"].send_signal(signal.SIGCONT)
        assert answer.status is Code.DEADLINE_EXCEEDED
        await serves(node)

    on_node(scenario, idle_timeout_s=1)


# states


def test_busy_stops_admission_and_stays_serving_while_what_runs_goes_on() -> None:
    async def scenario(node: EdgeNode) -> None:
        stream = await node.device.begin(b"drip 20")
        while not await stream.read_one():
            pass
        node.stop_lease()
        waiting = node.device.open()
        await waiting.setup()
        assert (await node.publish(pb.STATE_BUSY)).in_flight == 1
        async for level in node.device.loads():
            assert (level.max_batch_size, level.current_batch_size, level.optimal_batch_size) == (0, 1, 0)
            break
        assert await node.health() == 1
        await refused(node, Code.UNAVAILABLE, "busy")
        key = await node.device.fetch()
        await waiting.send(parameters(key.seal().wrapped_key, key.key_id))
        assert (await waiting.finish()).status is Code.UNAVAILABLE
        assert await stream.read_one()
        old = {helper.pid for helper in node.helpers()}
        await node.publish(pb.STATE_READY, 5000, model="m", release="1")
        await until(lambda: len({helper.pid for helper in node.helpers()} - old) == 1, "a renewed pair")
        await serves(node)
        stream.call.cancel()

    on_node(scenario)


def test_a_lease_that_is_not_renewed_ends_and_an_error_is_not_serving() -> None:
    async def scenario(node: EdgeNode) -> None:
        node.stop_lease()
        await node.publish(pb.STATE_READY, 200, model="m", release="1")
        await node.serving(False)
        await refused(node, Code.UNAVAILABLE, "unknown")
        await node.publish(pb.STATE_READY, 5000, model="m", release="1")
        await node.serving()
        await node.publish(pb.STATE_ERROR)
        assert await node.health() == 2
        await refused(node, Code.UNAVAILABLE, "error")

    on_node(scenario)


@pytest.mark.parametrize(
    ("state", "lease_ms", "fields", "about"),
    [
        (pb.STATE_UNSPECIFIED, 1000, {}, "state"),
        (99, 1000, {}, "state"),
        (pb.STATE_READY, 0, {}, "lease_ms"),
        (pb.STATE_READY, 5001, {}, "5000"),
        (pb.STATE_READY, 1000, {"bundle_identity": b"short"}, "bundle_identity"),
        (pb.STATE_READY, 1000, {"model": "m" * 129}, "model"),
    ],
)
def test_a_malformed_state_is_refused_and_changes_nothing(
    state: pb.State.ValueType, lease_ms: int, fields: dict[str, Any], about: str
) -> None:
    async def scenario(node: EdgeNode) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await node.publish(state, lease_ms, **fields)
        assert refusal.value.code() is Code.INVALID_ARGUMENT
        assert about in (refusal.value.details() or "")
        await serves(node)

    on_node(scenario)


def test_another_release_retires_the_keys_that_vouched_for_the_old_one() -> None:
    async def scenario(node: EdgeNode) -> None:
        old = await node.device.fetch()
        node.keep_ready(release="2")
        await until(lambda: any(line["event"] == "workload.changed" for line in node.log("cloudboardd")), "the change")
        await node.serving()
        new = await node.device.fetch()
        assert (new.bundle.release, list(new.response.unpublished_key_ids)) == ("2", [])
        assert await ask_with(node.device, old) is Code.INVALID_ARGUMENT
        await serves(node)

    on_node(scenario)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to call as another uid")
def test_another_uid_is_refused_on_every_socket() -> None:
    async def scenario(node: EdgeNode) -> None:
        paths = node.paths
        for directory in paths.directories():
            directory.chmod(0o755)  # so that only the peer check is left
        for socket, method in (
            (paths.node_state_socket, "/tie.api.cloudboard.v1.NodeState/PublishState"),
            (paths.key_protection_socket, "/tie.api.key_protection.v1.KeyProtection/Decapsulate"),
            (paths.key_custody_socket, "/tie.api.key_protection.v1.KeyCustody/HoldKeys"),
        ):
            assert socket.stat().st_mode & 0o777 == 0o660
            socket.chmod(0o666)
            called = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, "-c", CALL_AS_ANOTHER_UID, str(socket), method],
                capture_output=True,
                text=True,
                check=True,
                env={"PATH": "/usr/bin:/bin"},
            )
            assert called.stdout.strip() == "PERMISSION_DENIED", called
        await serves(node)

    on_node(scenario)


def test_inner_sockets_are_for_our_own_uid_alone() -> None:
    async def scenario(node: EdgeNode) -> None:
        for public in (node.paths.node_state_socket, node.paths.key_custody_socket, node.paths.key_protection_socket):
            for inner in (f".{public.name}", f".{public.name}-"):
                assert public.with_name(inner).stat().st_mode & 0o077 == 0

    on_node(scenario)


def test_drain_ends_idle_streams_at_once_lets_work_finish_and_is_bounded() -> None:
    async def scenario(node: EdgeNode) -> None:
        idle, endless = node.device.open(), await node.device.begin(b"drip 20")
        short = await node.device.begin(b"count 5000")
        await idle.setup()
        for stream in (endless, short):
            while not await stream.read_one():
                pass
        started = time.monotonic()
        node.processes["cloudboardd"].terminate()
        answer = await idle.finish()
        assert (answer.status, answer.details) == (Code.UNAVAILABLE, "the node is draining")
        answer = await short.finish()
        assert (answer.outcome, len(answer.messages)) == (Outcome.OK, 5000)
        answer = await endless.finish()
        assert answer.status is Code.UNAVAILABLE
        assert answer.messages
        assert await asyncio.to_thread(node.processes["cloudboardd"].wait, 10) == 0
        assert time.monotonic() - started < 15
        assert not node.paths.cloudboard_address.exists()

    on_node(scenario, drain_timeout_s=5, pool_size=2)


# keys


def test_keys_rotate_are_accepted_for_their_lifetime_and_then_expire() -> None:
    async def scenario(node: EdgeNode) -> None:
        first = await node.device.fetch()
        assert await ask_with(node.device, first) is Code.OK

        async def rotated() -> NodeKey:
            while (key := await node.device.fetch()).key_id == first.key_id:
                await asyncio.sleep(0.05)
            return key

        async with asyncio.timeout(10):
            second = await rotated()
        assert second.bundle.key_number == (first.bundle.key_number + 1) % 256
        assert first.key_id in second.response.unpublished_key_ids
        assert await ask_with(node.device, first) is Code.OK
        await until(lambda: any(line["event"] == "key.expired" for line in node.log("cloudboardd")), "expiry")
        assert await ask_with(node.device, first) is Code.INVALID_ARGUMENT
        await serves(node)

    on_node(scenario, key_rotation_s=2, key_lifetime_s=3, key_grace_s=1)


def test_key_protection_opens_nothing_for_a_caller_that_was_not_announced() -> None:
    async def scenario(node: EdgeNode) -> None:
        key = await node.device.fetch()
        async with grpc.aio.insecure_channel(f"unix:{node.paths.key_protection_socket}") as channel:
            stub = kp_rpc.KeyProtectionStub(channel)
            request = kp.DecapsulateRequest(
                job_id=bytes(16),
                key_number=key.bundle.key_number,
                enc=key.seal().wrapped_key[7:39],
                binding_key=b"\x09" + bytes(31),
            )
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await stub.Decapsulate(request, timeout=5)
        assert refusal.value.code() is Code.PERMISSION_DENIED
        await serves(node)

    on_node(scenario)


def test_there_is_one_custodian() -> None:
    async def scenario(node: EdgeNode) -> None:
        async with grpc.aio.insecure_channel(f"unix:{node.paths.key_custody_socket}") as channel:
            call: Any = kp_rpc.KeyCustodyStub(channel).HoldKeys(timeout=5)
            await call.write(kp.HoldKeysRequest(open=kp.Open()))
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await call.read()
        assert refusal.value.code() is Code.FAILED_PRECONDITION
        await serves(node)

    on_node(scenario)


# what is served, and what is left


def test_a_device_is_answered_with_the_derived_key_and_its_routing_at_the_app() -> None:
    async def scenario(node: EdgeNode) -> None:
        assert len((await node.device.ask(b"kvkey")).messages[0]) == 32
        key = await node.device.fetch()
        session = key.seal()
        stream = node.device.open(session)
        await stream.setup()
        workload = pb.Workload(name="tie-cloud-app", parameters={"tier": "interactive"})
        await stream.send(parameters(session.wrapped_key, key.key_id, workload=workload))
        for part in session.seal_message(b"metadata"):
            await stream.send(request_chunk(part.payload, part.is_final))
        assert (await stream.finish()).messages == [b"tier=interactive"]

    on_node(scenario)


def test_every_request_has_a_pair_of_its_own_and_nothing_is_left() -> None:
    async def scenario(node: EdgeNode) -> None:
        daemon = psutil.Process(node.processes["cloudboardd"].pid)
        keys = psutil.Process(node.processes["key_protection"].pid)
        await serves(node)
        before = await settled(node, daemon, keys)
        answers = await asyncio.gather(*(node.device.ask(b"echo %d" % number) for number in range(6)))
        assert [answer.messages for answer in answers] == [[b"%d" % number] for number in range(6)]
        for _ in range(3):
            await serves(node)
        after = await settled(node, daemon, keys)
        served = [line["pid"] for line in node.log("cloudboardd") if line["event"] == "request.served"]
        assert len(served) == len(set(served)) == 10
        await until(lambda: not any(alive(pid) for pid in served), "the end of the helpers")
        assert after == before

    on_node(scenario, pool_size=2, max_pairs=10)


def test_logs_carry_listed_fields_and_nothing_of_a_request() -> None:
    async def scenario(node: EdgeNode) -> None:
        key = await node.device.fetch()
        session = key.seal()
        marker = b"XMARKERX"
        stream = node.device.open(session)
        await stream.setup()
        workload = pb.Workload(name="tie-cloud-app", parameters={"XMARKERX": "XMARKERX"})
        message = parameters(session.wrapped_key, key.key_id, workload=workload, request_id="XMARKERX")
        await stream.send(message)
        for part in session.seal_message(b"echo " + marker):
            await stream.send(request_chunk(part.payload, part.is_final))
        assert (await stream.finish()).messages == [marker]
        await node.device.ask(b"outcome 4 " + marker)
        for bad in (marker, b"XMARKERX" * 20):
            refused_stream = node.device.open()
            await refused_stream.setup()
            await refused_stream.send(parameters(bad, key.key_id, request_id="XMARKERX" * 20))
            assert "XMARKERX" not in (await refused_stream.finish()).details
        for name in ("cloudboardd", "key_protection"):
            raw = (node.paths.logs / f"{name}.jsonl").read_bytes()
            for secret in (marker, session.wrapped_key.hex().encode(), session.wrapped_key[7:39].hex().encode()):
                assert secret not in raw
            for line in node.log(name):
                assert set(line) - FIELDS <= {"event", "level", "time", "process", "pid"}

    on_node(scenario)


def test_an_address_that_cannot_be_bound_stops_the_start() -> None:
    async def scenario(node: EdgeNode) -> None:
        node.processes["cloudboardd"].terminate()
        await asyncio.to_thread(node.processes["cloudboardd"].wait, 10)
        text = node.paths.config.read_text()
        node.paths.config.write_text(text + 'listen = "256.0.0.1:1"\n')
        node.start("cloudboardd", "tie.cloudboard")
        assert await asyncio.to_thread(node.processes["cloudboardd"].wait, 10) != 0
        assert ConfigError.__name__ in (node.paths.logs / "cloudboardd.jsonl").read_text()

    on_node(scenario)


def test_a_unix_address_serves_too() -> None:
    async def run() -> None:
        with short_directory() as directory:
            async with EdgeNode(Path(directory), listen=f"unix:{directory}/front.sock") as node:
                assert node.paths.cloudboard_address.read_text().strip() == f"unix:{directory}/front.sock"
                await serves(node)

    asyncio.run(run())
