"""Starts a fresh tie-cloud-app for every connection to its socket, as systemd's Accept=yes does.

An app is executed anew each time and never forked from a warmed parent: that isolation is the product. The connection
is its file descriptor 3; it inherits nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import selectors
import signal
import socket
import time
from pathlib import Path
from typing import Final

from tie.contracts.errors import NotAdmitted
from tie.node.programs import child_environment, python_command
from tie.node.stop_signal import stop_signal
from tie.servicekit import logs, peers
from tie.servicekit.config import NodeConfig, load
from tie.servicekit.listening import FIRST_PASSED_FD, listen_unix

MAX_INSTANCES: Final = 256
"""Like MaxConnections=: beyond it a connection is closed at once. cloudboardd's own cap on pairs is far below."""
STOP_GRACE_S: Final = 2.0
_SHELL: Final = "/bin/sh"
# LISTEN_PID must name the process that reads it, which only that process knows before it becomes the app.
_BECOME: Final = 'LISTEN_PID=$$ exec "$@"'


def main() -> None:
    parser = argparse.ArgumentParser(prog="acceptor", description="starts one app process per connection")
    parser.add_argument("--config", type=Path, required=True)
    config_path: Path = parser.parse_args().config
    config = load(config_path, "node", NodeConfig)
    logs.configure("acceptor", config.log_level)
    command = python_command("tie.cloud_app", "--config", str(config_path))
    with listen_unix(config.paths.app_socket) as listener, stop_signal() as stop:
        Acceptor(listener, stop, command, app_environment(config.run_dir), config.admitted_uids).run()
    config.paths.app_socket.unlink(missing_ok=True)


class Acceptor:
    """One loop: accepts, starts, reaps. Ends when the stop socket becomes readable."""

    def __init__(
        self,
        listener: socket.socket,
        stop: socket.socket,
        command: list[str],
        environment: dict[str, str],
        admitted_uids: tuple[int, ...] = (),
    ) -> None:
        self._listener = listener
        self._stop = stop
        self._command = command
        self._admitted_uids = admitted_uids
        self._environment = environment
        self._instances: dict[int, int] = {}  # pid → pidfd
        self._selector = selectors.DefaultSelector()
        self._log = logs.logger()

    def run(self) -> None:
        _inherit_nothing()
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._stop, selectors.EVENT_READ)
        self._log.info("acceptor.listening")
        try:
            while self._turn(None):
                pass
        finally:
            self._end_all()
            self._selector.close()

    def _turn(self, timeout_s: float | None) -> bool:
        """Handles what is ready; False once asked to stop."""
        goes_on = True
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self._stop:
                goes_on = False
            elif key.fileobj is self._listener:
                self._accept()
            else:
                self._reap(key.data)
        return goes_on

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        with connection:
            try:
                peers.admit(connection, self._admitted_uids)
            except NotAdmitted:
                self._log.warning(
                    "connection.refused", reason="peer is not admitted", uid=peers.credentials(connection).uid
                )
                return
            if len(self._instances) >= MAX_INSTANCES:
                self._log.warning("connection.refused", reason="too many instances", limit=MAX_INSTANCES)
                return
            self._start(connection)

    def _start(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        files = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, 2, 1),
            (os.POSIX_SPAWN_DUP2, connection.fileno(), FIRST_PASSED_FD),
        ]
        argv = [_SHELL, "-c", _BECOME, "tie-cloud-app", *self._command]
        try:
            pid = os.posix_spawn(_SHELL, argv, self._environment, file_actions=files)
        except OSError as error:  # out of processes or memory: this connection's fault to bear, not the next one's
            self._log.error("app.not_started", errno=error.errno)
            return
        self._instances[pid] = os.pidfd_open(pid)
        self._selector.register(self._instances[pid], selectors.EVENT_READ, data=pid)
        self._log.debug("app.started", job=pid, in_flight=len(self._instances))

    def _reap(self, pid: int) -> None:
        descriptor = self._instances.pop(pid)
        self._selector.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        ended = {"exit_code": code} if code >= 0 else {"signal": -code}
        say = self._log.debug if code == 0 else self._log.warning
        say("app.ended", job=pid, in_flight=len(self._instances), **ended)

    def _end_all(self) -> None:
        self._selector.unregister(self._listener)
        self._selector.unregister(self._stop)
        for number, grace_s in ((signal.SIGTERM, STOP_GRACE_S), (signal.SIGKILL, STOP_GRACE_S)):
            for descriptor in self._instances.values():
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)
            deadline = time.monotonic() + grace_s
            while self._instances and (left_s := deadline - time.monotonic()) > 0:
                self._turn(left_s)
        self._log.info("acceptor.stopped", count=len(self._instances))


def _inherit_nothing() -> None:
    """Marks every descriptor close-on-exec, those of whoever started this process included."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the listing's own is closed by now
            if int(entry.name) > 2:
                os.set_inheritable(int(entry.name), False)


def app_environment(run_dir: str) -> dict[str, str]:
    """All that an app inherits by name."""
    inherited = child_environment(os.environ, Path(run_dir))
    # One request needs no thread pool of a linear-algebra library, and starting one would lengthen its warm-up.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**inherited, **threads, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "connection"}


if __name__ == "__main__":
    main()
