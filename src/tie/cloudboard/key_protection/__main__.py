"""Starts key protection: `python -m tie.cloudboard.key_protection --config RUN/node.toml`."""

from __future__ import annotations

import argparse
import asyncio
import signal
from pathlib import Path

from tie.api.key_protection.v1 import key_protection_pb2_grpc as rpc
from tie.cloudboard import admitted_server
from tie.cloudboard.key_protection.decapsulation import Decapsulator
from tie.cloudboard.key_protection.service import Custody, Protection
from tie.cloudboard.key_protection.vault import Vault
from tie.envelope.suites import X25519_SHA256_AES128GCM
from tie.servicekit import config, hygiene, logs, notify


async def serve(node: config.NodeConfig) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    vault, decapsulator = Vault(X25519_SHA256_AES128GCM), Decapsulator()
    custody = Custody(vault)
    protection = Protection(vault, decapsulator, custody)
    try:
        await decapsulator.start()
        async with (
            admitted_server.serve(
                node.paths.key_protection_socket,
                lambda server: rpc.add_KeyProtectionServicer_to_server(protection, server),
                node.admitted_uids,
            ),
            admitted_server.serve(
                node.paths.key_custody_socket,
                lambda server: rpc.add_KeyCustodyServicer_to_server(custody, server),
                node.admitted_uids,
            ),
        ):
            logs.logger().info("key_protection.serving")
            notify.notify("READY=1")
            await stopped.wait()
            notify.notify("STOPPING=1")
    finally:
        vault.forget()
        decapsulator.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tie.cloudboard.key_protection", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    path = parser.parse_args().config
    node = config.load(path, "node", config.NodeConfig)
    logs.configure("key_protection", node.log_level)
    hygiene.harden()
    asyncio.run(serve(node))


if __name__ == "__main__":
    main()
