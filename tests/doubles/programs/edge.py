"""cloudboardd's stand-in: serves a fake node, writes its address, ends on SIGTERM."""

from __future__ import annotations

import argparse
from pathlib import Path

from doubles.fake_node import FakeNode

from tie.node.stop_signal import stop_signal
from tie.servicekit import logs
from tie.servicekit.config import NodeConfig, load


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path, required=True)
    config = load(parser.parse_args().config, "node", NodeConfig)
    logs.configure("cloudboardd")
    with stop_signal() as stop, FakeNode() as node:
        config.paths.cloudboard_address.write_text(node.address)
        logs.logger().info("edge.serving", address=node.address)
        stop.recv(1)


if __name__ == "__main__":
    main()
