"""What an operator sets for the runtime: section [afm_runtime] of the node's file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tie.contracts.errors import ConfigError

CONFIG_VARIABLE: Final = "TIE_NODE_CONFIG"
"""Through the environment, because Triton starts the stub: where the node's file is. Nothing secret."""


@dataclass(frozen=True, slots=True)
class AfmRuntimeConfig:
    """Checked by `check`; sizes that depend on the model are checked when it is attached."""

    triton_dir: str
    python: str
    threads: int = 1
    block_count: int = 0
    kv_bytes: int = 1 << 30
    step_token_budget: int = 256
    max_running: int = 64
    max_queued: int = 256
    ready_timeout_s: float = 60.0
    stop_timeout_s: float = 8.0
    model_repository: str = ""
    control_uids: tuple[int, ...] = ()
    """Who besides the runtime's own uid may use its control socket."""

    @property
    def server(self) -> Path:
        return Path(self.triton_dir) / "pytriton" / "tritonserver" / "bin" / "tritonserver"

    @property
    def backends(self) -> Path:
        return Path(self.triton_dir) / "pytriton" / "tritonserver" / "backends"

    @property
    def repository(self) -> Path:
        return Path(self.model_repository or Path(self.triton_dir) / "model_repository")

    def check(self) -> None:
        """Raises ConfigError that names the key."""
        for key, low, high in _RANGES:
            value = getattr(self, key)
            if not low <= value <= high:
                raise ConfigError(f"[afm_runtime] {key} is {value}, not within {low:g} to {high:g}")
        if self.step_token_budget < self.max_running:
            # Decode rows come first: with fewer tokens than rows a step, a running answer could starve.
            raise ConfigError(
                f"[afm_runtime] step_token_budget is {self.step_token_budget}, below max_running {self.max_running}"
            )
        for path in (self.server, self.backends, self.repository, Path(self.python)):
            if not path.exists():
                raise ConfigError(f"[afm_runtime] {path} does not exist")


_RANGES: Final = (
    ("threads", 1, 1024),
    ("block_count", 0, 2**31 - 1),
    ("kv_bytes", 1, 2**50),
    ("step_token_budget", 1, 1 << 20),
    ("max_running", 1, 4096),
    ("max_queued", 0, 1 << 16),
    ("ready_timeout_s", 0.1, 3600),
    ("stop_timeout_s", 0.1, 3600),
)
