"""What a node is doing, gathered once: its processes, its address, what it says of its model and load."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import grpc

from tie.api.cloudboard.v1 import cloudboard_pb2
from tie.clients import cloudboard
from tie.contracts.errors import TieError
from tie.contracts.paths import RunPaths
from tie.node import herald, processes, rundir, supervisor
from tie.node.programs import HERALD, NODE_PROGRAMS

_ORDER: Final = {program.name: place for place, program in enumerate(NODE_PROGRAMS)}
ASK_DEADLINE_S: Final = 2.0


class NodeCondition(StrEnum):
    READY = "ready"
    NOT_READY = "not ready"
    """Processes run, but no requests are taken: starting, draining, or something is down."""
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One supervised process. `pid` is 0 where none runs."""

    name: str
    state: str
    pid: int
    uptime_s: int
    restarts: int
    last_end: str


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One look at a node. `problem` says what stands between it and ready."""

    run_dir: str
    condition: NodeCondition
    problem: str
    address: str
    model: str
    release: str
    bundle_identity: str
    load: cloudboard.Load | None
    processes: tuple[ProcessStatus, ...]
    supervisor_pid: int


def look(paths: RunPaths, deadline_s: float = ASK_DEADLINE_S) -> NodeStatus:
    """Never raises for what a node does or fails to do: that is what the answer is for."""
    found = processes.supervisord_of(paths)
    if found is None:
        left = len(processes.of_node(paths))
        problem = f"supervisord is gone, {left} processes are left" if left else "no node runs here"
        condition = NodeCondition.NOT_READY if left else NodeCondition.STOPPED
        return NodeStatus(str(paths.root), condition, problem, "", "", "", "", None, (), 0)
    listed, problem = _supervised(paths)
    edge = _Edge("", None, None, problem) if problem else _ask(paths, deadline_s)
    bundle = edge.bundle or cloudboard_pb2.AttestationBundle()
    return NodeStatus(
        run_dir=str(paths.root),
        condition=NodeCondition.NOT_READY if edge.problem else NodeCondition.READY,
        problem=edge.problem,
        address=edge.address,
        model=bundle.model,
        release=bundle.release,
        bundle_identity=bundle.bundle_identity.hex(),
        load=edge.load,
        processes=listed,
        supervisor_pid=found.pid,
    )


def _supervised(paths: RunPaths) -> tuple[tuple[ProcessStatus, ...], str]:
    try:
        states = supervisor.process_states(rundir.supervisor_socket(paths))
    except TieError as error:
        return (), str(error)
    ledger = herald.read_ledger(paths)
    states.sort(key=lambda state: _ORDER.get(state.name, len(_ORDER)))
    listed = tuple(_process(state, ledger.get(state.name, {})) for state in states if state.name != HERALD)
    down = [process.name for process in listed if not process.pid]
    return listed, f"not running: {', '.join(down)}" if down else ""


def _process(state: supervisor.ProcessState, entry: dict[str, Any]) -> ProcessStatus:
    restarts, last_end = int(entry.get("restarts", 0)), str(entry.get("last_end", ""))
    return ProcessStatus(state.name, state.state, state.pid, state.uptime_s, restarts, last_end)


@dataclass(frozen=True, slots=True)
class _Edge:
    address: str
    bundle: cloudboard_pb2.AttestationBundle | None
    load: cloudboard.Load | None
    problem: str


def _ask(paths: RunPaths, deadline_s: float) -> _Edge:
    """What the node's edge answers. It is ready when it attests to a key and publishes capacity."""
    address, bundle, load = "", None, None
    ends_at = time.monotonic() + deadline_s
    try:
        address = cloudboard.read_address(paths.root)
        with grpc.insecure_channel(address, options=cloudboard.CHANNEL_OPTIONS) as channel:
            answer = cloudboard.fetch_attestation(channel, max(0.1, ends_at - time.monotonic()))
            bundle = cloudboard_pb2.AttestationBundle.FromString(answer.attestation_bundle)
            load = cloudboard.fetch_load(channel, max(0.1, ends_at - time.monotonic()))
    except TieError as error:
        return _Edge(address, bundle, load, str(error))
    problem = "" if load.max_batch_size else "the node takes no requests yet"
    return _Edge(address, bundle, load, problem)
