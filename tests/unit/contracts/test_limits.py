"""Bounds that other bounds rely on."""

from __future__ import annotations

from pathlib import Path

from tie.contracts import limits, triton_io
from tie.contracts.paths import RunPaths


def test_buckets_grow_and_fit_a_message() -> None:
    assert list(limits.RESPONSE_BUCKETS) == sorted(set(limits.RESPONSE_BUCKETS))
    assert max(limits.REQUEST_BUCKETS) < limits.MAX_REQUEST_BYTES
    assert limits.MAX_MESSAGE_BYTES < limits.MAX_FRAME_BYTES


def test_everything_of_a_node_is_below_its_run_directory() -> None:
    paths = RunPaths(Path("/run/x"))
    for name in ("config", "cloudboard_address", "node_state_socket", "key_custody_socket", "key_protection_socket"):
        assert getattr(paths, name).is_relative_to("/run/x")
    assert str(paths.triton_socket) == str(paths.triton_socket_stem) + ":8001"
    assert all(directory.is_relative_to("/run/x") for directory in paths.directories())


def test_shared_memory_cannot_be_registered_by_a_client() -> None:
    assert triton_io.SHM_PREFIX.startswith("triton_python_backend_shm_region_")
    assert "shared-memory" in triton_io.RESTRICTED_PROTOCOLS
