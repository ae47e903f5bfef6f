"""Starts cloudboardd: `python -m tie.cloudboard --config RUN/node.toml`."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from tie.cloudboard import daemon
from tie.cloudboard.config import CloudboardConfig
from tie.servicekit import config, hygiene, logs


def main() -> None:
    parser = argparse.ArgumentParser(prog="tie.cloudboard", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    path = parser.parse_args().config.resolve()
    node = config.load(path, "node", config.NodeConfig)
    cloudboard = config.load(path, "cloudboardd", CloudboardConfig)
    logs.configure("cloudboardd", node.log_level)
    hygiene.harden()
    asyncio.run(daemon.serve(path, node, cloudboard))


if __name__ == "__main__":
    main()
