"""cloudboardd put together: what is built, in which order it starts, and how it ends."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import grpc

from tie.api.cloudboard.v1 import cloudboard_pb2_grpc as rpc
from tie.cloudboard import admitted_server, pair
from tie.cloudboard.board import Board
from tie.cloudboard.config import CloudboardConfig
from tie.cloudboard.custody import Custody
from tie.cloudboard.front import Front
from tie.cloudboard.health import Health
from tie.cloudboard.invocation import Services
from tie.cloudboard.keyring import Keyring, Lifetimes
from tie.cloudboard.node_state import NodeStateService
from tie.cloudboard.pool import Pool, PoolLimits
from tie.contracts.errors import ConfigError
from tie.contracts.limits import MAX_MESSAGE_BYTES
from tie.envelope.suites import X25519_SHA256_AES128GCM
from tie.servicekit import logs, notify
from tie.servicekit.config import NodeConfig

_SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES + 64 * 1024),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES + 64 * 1024),
    ("grpc.so_reuseport", 0),
    # A client that vanished without a word is noticed by a ping.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
)
_STOP_GRACE_S: Final = 1.0


async def serve(config_path: Path, node: NodeConfig, config: CloudboardConfig) -> None:
    """Runs until SIGTERM or SIGINT, then drains within the configured time."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    if sys.version_info < (3, 12):  # later ones watch children by pidfd by themselves, without a thread for each
        watcher = asyncio.PidfdChildWatcher()
        watcher.attach_loop(asyncio.get_running_loop())
        asyncio.set_child_watcher(watcher)
    services = _build(config_path, node, config)
    state = NodeStateService(services.board, services.keyring, services.custody, services.pool)
    async with (
        _running(services.pool.run(), services.custody.run()),
        admitted_server.serve(
            node.paths.node_state_socket,
            lambda server: rpc.add_NodeStateServicer_to_server(state, server),
            node.admitted_uids,
        ),
        _network(services, node.paths.cloudboard_address) as front,
    ):
        notify.notify("READY=1")
        await stopped.wait()
        notify.notify("STOPPING=1")
        logs.logger().info("cloudboardd.draining", in_flight=services.board.in_flight)
        services.board.drain()
        await front.drain(config.drain_timeout_s)
    await services.pool.close()
    logs.logger().info("cloudboardd.stopped")


def _build(config_path: Path, node: NodeConfig, config: CloudboardConfig) -> Services:
    lifetimes = Lifetimes(config.key_rotation_s, config.key_lifetime_s, config.key_grace_s)
    keyring = Keyring(X25519_SHA256_AES128GCM, lifetimes, time.time)
    changed: list[Callable[[], None]] = []

    def on_change() -> None:
        for tell in changed:
            tell()

    limits = PoolLimits(config.pool_size, config.max_pairs, config.pair_max_wait_s, config.refill_delay_s)
    pool = Pool(limits, lambda: pair.start(config_path, config.pair_warmup_s), on_change)
    custody = Custody(node.paths.key_custody_socket, keyring, on_change)

    def lacks() -> str:
        if keyring.current is None:
            return "no attested key"
        return "" if pool.is_able else "no warm pair"

    board = Board(config.max_pairs, lambda: pool.in_flight, lacks)
    changed.append(board.changed)
    return Services(config, board, keyring, custody, pool)


@asynccontextmanager
async def _network(services: Services, address_file: Path) -> AsyncIterator[Front]:
    """The public server; the address file exists while it serves."""
    server = grpc.aio.server(options=_SERVER_OPTIONS)
    front = Front(services)
    server.add_generic_rpc_handlers((front.handler(), Health(services.board).handler()))
    listen = services.config.listen
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise ConfigError(f"[cloudboardd] listen: cannot bind {listen}") from error
    await server.start()
    address = listen if listen.startswith("unix:") else f"{listen.rpartition(':')[0]}:{port}"
    _write_whole(address_file, address)
    logs.logger().info("cloudboardd.serving", address=address)
    try:
        yield front
    finally:
        await asyncio.to_thread(address_file.unlink, missing_ok=True)
        await server.stop(_STOP_GRACE_S)


def _write_whole(path: Path, text: str) -> None:
    """A reader sees the whole text or no file."""
    partial = path.with_name(f".{path.name}")
    partial.write_text(text + "\n", "utf-8")
    partial.replace(path)


@asynccontextmanager
async def _running(*loops: Coroutine[None, None, None]) -> AsyncIterator[None]:
    """Loops that run for as long as the daemon does; one that fails ends the daemon."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(loop) for loop in loops]
        yield
        for task in tasks:
            task.cancel()
