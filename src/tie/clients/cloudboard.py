"""Finds a node and asks it what anyone may ask: its attestation and its load. Sealed requests are tie.vre's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc

from tie.api.cloudboard.v1 import cloudboard_pb2, cloudboard_pb2_grpc
from tie.clients import rpc_errors
from tie.contracts.errors import NotReady, PeerError
from tie.contracts.limits import MAX_MESSAGE_BYTES
from tie.contracts.paths import RunPaths

CHANNEL_OPTIONS: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.enable_http_proxy", 0),  # a node's address is meant literally
    ("grpc.use_local_subchannel_pool", 1),  # a new channel to a restarted node inherits no back-off of an old one
)
MAX_ADDRESS_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Load:
    """What the node publishes of its capacity; a maximum of 0 means that it takes no requests now."""

    max_batch_size: int
    current_batch_size: int
    optimal_batch_size: int


def default_run_dir(environment: Mapping[str, str]) -> Path:
    """Where `tie up` runs a node unless told otherwise: TIE_RUN_DIR, XDG_RUNTIME_DIR/tie, or /tmp/tie-UID."""
    if chosen := environment.get("TIE_RUN_DIR"):
        return Path(chosen)
    if (runtime := environment.get("XDG_RUNTIME_DIR")) and Path(runtime).is_dir():
        return Path(runtime) / "tie"
    return Path(f"/tmp/tie-{os.geteuid()}")  # noqa: S108 - its owner and mode are checked before it is used


def read_address(run_dir: Path) -> str:
    """The address that the node of this run directory bound. Raises NotReady when none serves there."""
    path = RunPaths(run_dir).cloudboard_address
    try:
        with path.open("rb") as file:
            text = file.read(MAX_ADDRESS_BYTES + 1)
    except OSError as error:
        raise NotReady(f"no node serves in {run_dir}: {path.name}: {error.strerror}") from error
    if not text.strip() or len(text) > MAX_ADDRESS_BYTES:
        raise NotReady(f"no node serves in {run_dir}: {path.name} holds no address")
    return text.decode("utf-8", "replace").strip()


def fetch_attestation(channel: grpc.Channel, deadline_s: float) -> cloudboard_pb2.FetchAttestationResponse:
    """The node's current attestation, unverified. Raises NotReady, DeadlinePassed or PeerError."""
    stub = cloudboard_pb2_grpc.CloudBoardStub(channel)
    try:
        return stub.FetchAttestation(cloudboard_pb2.FetchAttestationRequest(), timeout=deadline_s)
    except grpc.RpcError as error:
        raise rpc_errors.typed(error, "the node", "attestation", deadline_s) from error


def fetch_load(channel: grpc.Channel, deadline_s: float) -> Load:
    """The load that the node publishes at this moment. Raises NotReady, DeadlinePassed or PeerError."""
    stub = cloudboard_pb2_grpc.CloudBoardStub(channel)
    watch = stub.WatchLoadLevel(cloudboard_pb2.WatchLoadLevelRequest(), timeout=deadline_s)
    try:
        level = next(iter(watch), None)
    except grpc.RpcError as error:
        raise rpc_errors.typed(error, "the node", "load level", deadline_s) from error
    finally:
        watch.cancel()
    if level is None:
        raise PeerError("the node ended its load stream before the first level")
    return Load(level.max_batch_size, level.current_batch_size, level.optimal_batch_size)
