"""`python -m tie.afm_runtime --config RUN/node.toml`: the host of Triton and the AFM Runtime."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tie.afm_runtime.config import AfmRuntimeConfig
from tie.afm_runtime.confinement import take_private_shm
from tie.afm_runtime.host import Host
from tie.contracts.errors import TieError
from tie.servicekit import config, hygiene, logs


def main() -> int:
    parser = argparse.ArgumentParser(prog="tie.afm_runtime", description="starts and watches Triton")
    parser.add_argument("--config", type=Path, required=True)
    path = parser.parse_args().config
    logs.configure("afm_host")
    try:
        node = config.load(path, "node", config.NodeConfig)
        runtime = config.load(path, "afm_runtime", AfmRuntimeConfig)
        runtime.check()
        logs.configure("afm_host", node.log_level)
        if not take_private_shm(node.admitted_uids):
            logs.logger().warning("host.shm_is_shared", reason="no mount namespace may be made here")
        hygiene.harden()
        return Host(runtime, path, node.paths).run().value
    except TieError as error:
        logs.logger().error("host.not_started", reason=str(error))
        return 2


if __name__ == "__main__":
    sys.exit(main())
