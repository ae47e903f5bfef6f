"""Finding a node, and asking it what anyone may ask."""

from __future__ import annotations

import os
from pathlib import Path

import grpc
import pytest
from doubles.fake_node import FakeNode

from tie.clients import cloudboard
from tie.contracts.errors import NotReady
from tie.contracts.paths import RunPaths


@pytest.mark.parametrize("content", [None, b"", b"  \n", b"x" * 600])
def test_no_address_or_none_that_is_one_is_not_ready(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        RunPaths(tmp_path).cloudboard_address.write_bytes(content)
    with pytest.raises(NotReady, match="no node serves"):
        cloudboard.read_address(tmp_path)


def test_a_node_that_is_not_there_is_not_ready() -> None:
    with grpc.insecure_channel("127.0.0.1:1", options=cloudboard.CHANNEL_OPTIONS) as channel:
        with pytest.raises(NotReady, match="does not answer"):
            cloudboard.fetch_attestation(channel, 2)
        with pytest.raises(NotReady, match="does not answer"):
            cloudboard.fetch_load(channel, 2)


def test_the_default_run_directory_follows_the_environment(tmp_path: Path) -> None:
    assert cloudboard.default_run_dir({"TIE_RUN_DIR": "/a", "XDG_RUNTIME_DIR": str(tmp_path)}) == Path("/a")
    assert cloudboard.default_run_dir({"XDG_RUNTIME_DIR": str(tmp_path)}) == tmp_path / "tie"
    assert cloudboard.default_run_dir({"XDG_RUNTIME_DIR": "/absent"}) == Path(f"/tmp/tie-{os.geteuid()}")


@pytest.mark.parametrize("over", ["tcp", "unix"])
def test_a_node_answers_on_either_kind_of_address(tmp_path: Path, over: str) -> None:
    with FakeNode(address="127.0.0.1:0" if over == "tcp" else f"unix:{tmp_path}/s") as node:
        RunPaths(tmp_path).cloudboard_address.write_text(f"{node.address}\n")
        with grpc.insecure_channel(cloudboard.read_address(tmp_path), options=cloudboard.CHANNEL_OPTIONS) as channel:
            assert cloudboard.fetch_attestation(channel, 5) == node.attestation()
            assert cloudboard.fetch_load(channel, 5) == cloudboard.Load(4, 1, 2)
