"""How tritonserver is started: which arguments, which environment, which limits. Each argument carries its reason."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import subprocess
from pathlib import Path

from tie.afm_runtime.config import CONFIG_VARIABLE, AfmRuntimeConfig
from tie.contracts import triton_io
from tie.contracts.paths import TRITON_PORT_SUFFIX, RunPaths
from tie.servicekit import hygiene

EXIT_TIMEOUT_S = 5


def arguments(config: AfmRuntimeConfig, paths: RunPaths, shm_prefix: str) -> list[str]:
    key = secrets.token_hex(16)  # used by nobody: the RPCs that it guards are closed
    return [
        str(config.server),
        f"--model-repository={config.repository}",
        f"--backend-directory={config.backends}",
        "--disable-auto-complete-config",  # the configuration is complete; asking the model costs over a second
        "--model-control-mode=none",  # nobody loads or unloads models by RPC
        "--allow-http=false",
        "--allow-metrics=false",
        # A Unix socket: Triton hands gRPC "ADDRESS:PORT", which gRPC takes for the path.
        f"--grpc-address=unix:{paths.triton_socket_stem}",
        f"--grpc-port={TRITON_PORT_SUFFIX}",
        # A colon before the key, whatever --help says.
        f"--grpc-restricted-protocol={','.join(triton_io.RESTRICTED_PROTOCOLS)}:k={key}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        "--pinned-memory-pool-byte-size=0",  # pinned for a GPU's copies: none here
        "--log-verbose=0",  # from 1 on, request ids are logged
        "--log-info=false",
    ]


def environment(config: AfmRuntimeConfig, config_path: Path) -> dict[str, str]:
    """Nothing inherited: the stub takes the first python3 on PATH, and follows its pyvenv.cfg."""
    return {
        "PATH": f"{Path(config.python).parent}:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "LANG": "C.UTF-8",
        CONFIG_VARIABLE: str(config_path.resolve()),
    }


def start(config: AfmRuntimeConfig, config_path: Path, paths: RunPaths, shm_prefix: str) -> subprocess.Popen[bytes]:
    """Starts tritonserver as leader of a process group of its own, with its log on a pipe. It dies with this thread."""
    parent = os.getpid()

    def prepare() -> None:
        os.umask(0o007)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        hygiene.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)  # the parent ended before the line above

    return subprocess.Popen(
        arguments(config, paths, shm_prefix),
        env=environment(config, config_path),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        process_group=0,
        preexec_fn=prepare,  # safe: this process has one thread
    )
