"""Starts tie-cloud-app: for the connection passed as fd 3, or for one request in a file."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tie.cloud_app.config import Config
from tie.servicekit import hygiene, logs
from tie.servicekit.config import NodeConfig, load


def main() -> bool:
    parser = argparse.ArgumentParser(prog="tie-cloud-app", description="serves one request and ends")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--input", type=Path, help="a serialized InferenceRequest")
    parser.add_argument("--output", type=Path, help="where its length-prefixed InferenceResponses go")
    options = parser.parse_args()
    if (options.input is None) != (options.output is None):
        parser.error("--input and --output go together")
    hygiene.harden()
    node, config = load(options.config, "node", NodeConfig), load(options.config, "cloud_app", Config)
    hygiene.limit_cpu(config.cpu_limit_s)
    logs.configure("tie-cloud-app", node.log_level)
    if options.input is not None:
        from tie.cloud_app.from_files import serve_file

        return serve_file(node, config, options.input, options.output)
    from tie.cloud_app.from_connection import serve_connection

    return serve_connection(node, config)


if __name__ == "__main__":
    try:
        code = 0 if main() else 1
    except SystemExit as end:  # argparse
        code = end.code if isinstance(end.code, int) else 2
    except Exception as error:  # the edge of the process: its text could hold request data
        logs.logger().error("app.failed", **logs.failure_place(error))
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # no library's thread or lock keeps this process beyond its request
