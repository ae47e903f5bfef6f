"""Starts one helper: `python -m tie.cloudboard.helper --config RUN/node.toml --fd N`, by cloudboardd alone."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
import sys
import time
from pathlib import Path

from tie.cloudboard.config import CloudboardConfig
from tie.cloudboard.helper.job import Job
from tie.cloudboard.helper.links import AppLink, PairLink
from tie.cloudboard.helper.opening import Opening
from tie.contracts.errors import TieError
from tie.servicekit import config, hygiene, logs

CONNECT_LIMIT_S = 5.0


def main() -> None:
    started = time.monotonic()
    parser = argparse.ArgumentParser(prog="tie.cloudboard.helper", description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--fd", type=int, required=True, help="socket pair to cloudboardd")
    arguments = parser.parse_args()
    node = config.load(arguments.config, "node", config.NodeConfig)
    limits = config.load(arguments.config, "cloudboardd", CloudboardConfig)
    logs.configure("cb_jobhelper", node.log_level)
    hygiene.harden()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is for cloudboardd, which drains
    os.set_inheritable(arguments.fd, False)
    pair = PairLink(socket.socket(fileno=arguments.fd))
    job = Job(
        pair,
        AppLink.connect(node.paths.app_socket, CONNECT_LIMIT_S),
        Opening(node.paths.key_protection_socket),
    )
    job.warm_up(limits.pair_warmup_s)
    logs.logger().debug("helper.warm", warmup_ms=round((time.monotonic() - started) * 1e3))
    gc.collect()
    gc.freeze()
    gc.disable()  # one request, then this process is over
    job.serve()


if __name__ == "__main__":
    status = 0
    try:
        main()
    except TieError as error:
        logs.logger().warning("helper.ended", error_type=type(error).__name__, reason=str(error))
        status = 1
    except Exception as error:  # the edge of the process
        logs.logger().error("helper.failed", **logs.failure_place(error))
        status = 1
    sys.stderr.flush()
    os._exit(status)  # no library's thread may keep a request's memory alive
