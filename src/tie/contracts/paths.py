"""Where a node's processes meet: the names below one run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Sockets, addresses and logs of one node. Creates nothing."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "node.toml"

    @property
    def cloudboard_address(self) -> Path:
        """A text file with the address that cloudboardd bound, written when it serves."""
        return self.root / "cloudboardd.address"

    @property
    def node_state_socket(self) -> Path:
        return self.root / "cloudboard" / "state.sock"

    @property
    def key_custody_socket(self) -> Path:
        return self.root / "keys" / "custody.sock"

    @property
    def key_protection_socket(self) -> Path:
        return self.root / "keys" / "open.sock"

    @property
    def app_socket(self) -> Path:
        return self.root / "app" / "tie-cloud-app.sock"

    @property
    def triton_socket_stem(self) -> Path:
        """What Triton is told; it appends a colon and its port number."""
        return self.root / "afm" / "triton.sock"

    @property
    def triton_socket(self) -> Path:
        return self.root / "afm" / f"triton.sock:{TRITON_PORT_SUFFIX}"

    @property
    def runtime_socket(self) -> Path:
        return self.root / "afm" / "runtime.sock"

    @property
    def runtime_control_socket(self) -> Path:
        return self.root / "afm" / "control.sock"

    @property
    def probe_socket(self) -> Path:
        return self.root / "probe" / "probe.sock"

    @property
    def owner_socket(self) -> Path:
        """For runtimes."""
        return self.root / "owner" / "owner.sock"

    @property
    def owner_admin_socket(self) -> Path:
        """For the controller."""
        return self.root / "owner-admin" / "admin.sock"

    @property
    def gpu_health_socket(self) -> Path:
        return self.root / "gpu" / "health.sock"

    @property
    def controller_socket(self) -> Path:
        """For operators."""
        return self.root / "operator" / "controller.sock"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    def directories(self) -> tuple[Path, ...]:
        """What must exist before any process starts, outermost first."""
        names = ("cloudboard", "keys", "app", "afm", "probe", "owner", "owner-admin", "gpu", "operator", "logs")
        return (self.root, *(self.root / name for name in names))


TRITON_PORT_SUFFIX = 8001
SOCKET_PATH_LIMIT = 107
"""Longest path of a Unix socket in bytes (sun_path less its terminator)."""
