"""Renews the node's readiness while its runtime answers: what tie-controllerd will do, and no more than a node needs.

Ready means that the runtime's own link is up (its end of file is the runtime's death, which Triton does not notice) and
that Triton's server says it is ready. The lease ends by itself when this process does.
"""

from __future__ import annotations

import argparse
import selectors
import socket
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol

from tie.catalog import load_trusted_keys, open_assets
from tie.clients.inference import InferenceClient
from tie.clients.node_state import ActiveWorkload, NodeStateClient
from tie.clients.runtime_link import RuntimeLink
from tie.contracts.errors import TieError
from tie.contracts.limits import MAX_LEASE_MS
from tie.node.settings import DEFAULT_MAX_RUNNING
from tie.node.stop_signal import stop_signal
from tie.servicekit import logs
from tie.servicekit.config import NodeConfig, load

RENEWAL_S: Final = 1.0
ANSWER_DEADLINE_S: Final = 2.0
BUSY_BOUND_S: Final = 30.0
"""A runtime that is being started again makes the node busy; one that has not come back after this, an error."""


class Verdict(StrEnum):
    READY = "ready"
    BUSY = "busy"
    ERROR = "error"


class Link(Protocol):
    """A held connection to the runtime."""

    @property
    def bundle_identity(self) -> bytes: ...

    def fileno(self) -> int:
        """Becomes readable when the runtime ends the connection: it says nothing after its welcome."""

    def wait_gone(self, timeout_s: float) -> bool:
        """Whether the runtime has ended it within this time."""

    def close(self) -> None: ...


@dataclass(slots=True)
class RuntimeWatch:
    """Decides from what the runtime answers now. `connect` and `is_server_ready` raise TieError or say no."""

    connect: Callable[[], Link]
    is_server_ready: Callable[[], bool]
    identity: bytes
    clock: Callable[[], float] = time.monotonic
    link: Link | None = None
    reason: str = "starting"
    _absent_since: float | None = None

    def check(self) -> Verdict:
        """Asks once. The reason for anything but ready is in `reason`."""
        try:
            problem = self._problem()
        except TieError as error:
            problem = str(error)
        self.reason = problem
        if not problem:
            self._absent_since = None
            return Verdict.READY
        if self.link is not None and self.link.bundle_identity != self.identity:
            return Verdict.ERROR
        now = self.clock()
        self._absent_since = now if self._absent_since is None else self._absent_since
        return Verdict.ERROR if now - self._absent_since > BUSY_BOUND_S else Verdict.BUSY

    def _problem(self) -> str:
        if self.link is not None and self.link.wait_gone(0):
            self.drop()
        if self.link is None:
            self.link = self.connect()
        if self.link.bundle_identity != self.identity:
            return "the runtime serves another bundle than the node is configured for"
        return "" if self.is_server_ready() else "triton is not ready"

    def drop(self) -> None:
        if self.link is not None:
            self.link.close()
            self.link = None


def main() -> None:
    parser = argparse.ArgumentParser(prog="lease", description="renews the node's readiness")
    parser.add_argument("--config", type=Path, required=True)
    path: Path = parser.parse_args().config
    config = load(path, "node", NodeConfig)
    logs.configure("lease", config.log_level)
    try:
        workload = describe_workload(config, path)
    except TieError as error:
        logs.logger().error("start.refused", reason=str(error))
        sys.exit(1)
    with stop_signal() as stop, NodeStateClient(config.paths.node_state_socket) as state:
        paths = config.paths
        watch = RuntimeWatch(
            connect=lambda: RuntimeLink.connect(paths.runtime_socket, ANSWER_DEADLINE_S),
            is_server_ready=lambda: _is_triton_ready(paths.triton_socket),
            identity=workload.bundle_identity,
        )
        try:
            renew(watch, state, workload, stop)
        finally:
            watch.drop()


def renew(watch: RuntimeWatch, state: NodeStateClient, workload: ActiveWorkload, stop: socket.socket) -> None:
    """Checks and publishes every second, and at once when the runtime's link ends, until asked to stop."""
    log, previous = logs.logger(), ""
    while True:
        verdict = watch.check()
        if verdict != previous:
            log.info("node.state", state=str(verdict), previous_state=previous, reason=watch.reason)
            previous = verdict
        _publish(state, verdict, workload)
        if _wait(stop, watch.link):
            _publish(state, Verdict.BUSY, workload)
            log.info("node.state", state="stopping", previous_state=previous, reason="asked to stop")
            return


def describe_workload(config: NodeConfig, path: Path) -> ActiveWorkload:
    """What the configured bundle says of itself, its signature verified. Raises TieError."""
    keys = load_trusted_keys(config.trusted_keys_file) if config.trusted_keys_file else ()
    with open_assets(config.bundle_dir, trusted_keys=keys, allow_unsigned=config.allow_unsigned_bundle) as assets:
        described, identity = assets.description, assets.identity
    # The launcher wrote this section and the runtime checks it; one number of it is all that is needed here.
    most = tomllib.loads(path.read_text("utf-8")).get("afm_runtime", {}).get("max_running", DEFAULT_MAX_RUNNING)
    return ActiveWorkload(described.name, described.release, identity, int(most), int(most))


def _publish(state: NodeStateClient, verdict: Verdict, workload: ActiveWorkload) -> None:
    try:
        if verdict is Verdict.READY:
            state.publish_ready(workload, MAX_LEASE_MS, ANSWER_DEADLINE_S)
        elif verdict is Verdict.BUSY:
            state.publish_busy(workload, ANSWER_DEADLINE_S)
        else:
            state.publish_error(workload, ANSWER_DEADLINE_S)
    except TieError as error:
        logs.logger().warning("node.state_not_published", state=str(verdict), reason=str(error))


def _wait(stop: socket.socket, link: Link | None) -> bool:
    """Until the next renewal is due or the link has something to say; True when asked to stop."""
    with selectors.DefaultSelector() as selector:
        selector.register(stop, selectors.EVENT_READ)
        if link is not None:
            selector.register(link.fileno(), selectors.EVENT_READ)
        return any(key.fileobj is stop for key, _ in selector.select(RENEWAL_S))


def _is_triton_ready(socket_path: Path) -> bool:
    # A channel for each question: it keeps no back-off from the time before the server's restart.
    with InferenceClient(socket_path) as triton:
        return triton.is_ready(ANSWER_DEADLINE_S)


if __name__ == "__main__":
    main()
