"""Starts Triton, waits until it serves, watches the server and the stub, and leaves nothing behind.

Triton does not notice a dead stub (it answers "ready" for ever while streams hang), so the host watches both: the
server by its process, the stub by its process and by the end of its link. When either is gone the whole process group
is killed; whoever supervises the host starts a fresh one. Should the host itself be killed, the kernel kills the
server, and the stub leaves with it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import time
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Final

from tie.afm_runtime import leftovers, triton_command
from tie.afm_runtime.config import AfmRuntimeConfig
from tie.afm_runtime.triton_log import TritonLog
from tie.clients.runtime_link import RuntimeLink
from tie.contracts.errors import PeerError, TieError
from tie.contracts.paths import RunPaths
from tie.servicekit import hygiene, logs
from tie.servicekit.listening import check_socket_path
from tie.servicekit.notify import notify

READY_POLL_S: Final = 0.01
REAP_S: Final = 5.0
LINK_TIMEOUT_S: Final = 1.0
DIRECTORY_MODE: Final = 0o2750


class End(Enum):
    """Why the host ends; the value is its exit code."""

    STOPPED = 0
    NOT_READY = 10
    SERVER_GONE = 11
    RUNTIME_GONE = 12
    OVERDUE = 13
    """It was told to stop and had to be killed."""


class Host:
    """One run of Triton, from start to the last trace. `run` is called once, on the only thread."""

    def __init__(self, config: AfmRuntimeConfig, config_path: Path, paths: RunPaths) -> None:
        self._config = config
        self._config_path = config_path
        self._paths = paths
        self._stack = ExitStack()
        self._log = logs.logger()
        self._triton_log = TritonLog()
        self._poll = select.poll()
        self._link: RuntimeLink | None = None
        self._stop_deadline: float | None = None

    def run(self) -> End:
        with self._stack:
            self._prepare()
            self._stack.callback(leftovers.clean, self._paths)
            self._begin()
            self._stack.callback(self._end_group)
            end = self._until_ready() or self._until_end()
            begin = time.monotonic()
        self._log.info("host.ended", outcome=end.name, stop_ms=round((time.monotonic() - begin) * 1000, 1))
        return end

    def _prepare(self) -> None:
        check_socket_path(self._paths.triton_socket)
        directory = self._paths.triton_socket.parent
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(DIRECTORY_MODE)
        if removed := leftovers.clean(self._paths):
            self._log.warning("host.cleaned", count=removed)
        hygiene.adopt_orphans()
        self._wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)  # the wake-up descriptor tells the loop
        self._poll.register(self._wakeup_read, select.POLLIN)

    def _begin(self) -> None:
        self._began = time.monotonic()
        self._environments = leftovers.environments()
        self._server = triton_command.start(
            self._config, self._config_path, self._paths, leftovers.new_shm_prefix(self._paths)
        )
        assert self._server.stdout is not None
        self._pipe = self._stack.enter_context(self._server.stdout)
        os.set_blocking(self._pipe.fileno(), False)
        self._server_fd = os.pidfd_open(self._server.pid)
        self._stack.callback(os.close, self._server_fd)
        for fd in (self._server_fd, self._pipe.fileno()):
            self._poll.register(fd, select.POLLIN)
        self._pipe_is_open = True
        self._stub_fd = -1
        self._log.info("host.server_started", pid=self._server.pid)

    def _until_ready(self) -> End | None:
        deadline = self._began + self._config.ready_timeout_s
        while not self._serves():
            if (end := self._happened(READY_POLL_S)) is not None:
                return End.NOT_READY if end is End.SERVER_GONE else end
            if time.monotonic() >= deadline:
                self._log.error("host.not_ready", limit=self._config.ready_timeout_s)
                return End.NOT_READY
        self._triton_log.is_serving = True
        leftovers.note_environments(self._paths, leftovers.environments() - self._environments)
        notify("READY=1")
        self._log.info("host.ready", start_ms=round((time.monotonic() - self._began) * 1000, 1))
        return None

    def _until_end(self) -> End:
        while (end := self._happened(None)) is None:
            pass
        return end

    def _serves(self) -> bool:
        """Whether the runtime welcomes us and Triton accepts calls, which it does only once the model is loaded."""
        if self._link is None:
            try:
                self._link = self._stack.enter_context(RuntimeLink.connect(self._paths.runtime_socket, LINK_TIMEOUT_S))
            except TieError:
                return False
            self._watch_stub(self._link)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(LINK_TIMEOUT_S)
            return probe.connect_ex(str(self._paths.triton_socket)) == 0

    def _watch_stub(self, link: RuntimeLink) -> None:
        self._poll.register(link.fileno(), select.POLLIN)
        try:
            self._stub_fd = os.pidfd_open(link.runtime.pid)
            group = os.getpgid(link.runtime.pid)
        except ProcessLookupError:
            return  # gone already: the link says so too
        self._stack.callback(os.close, self._stub_fd)
        self._poll.register(self._stub_fd, select.POLLIN)
        if group != self._server.pid:
            raise PeerError(f"process {link.runtime.pid} answers on the runtime's socket and is not Triton's")
        self._log.info("host.runtime_seen", pid=link.runtime.pid)

    def _happened(self, timeout_s: float | None) -> End | None:
        """Waits for one thing to happen; what it means for the host, if it means the end."""
        if self._stop_deadline is not None:
            timeout_s = max(0.0, self._stop_deadline - time.monotonic())
        ready = {fd for fd, _ in self._poll.poll(None if timeout_s is None else timeout_s * 1000)}
        if self._pipe.fileno() in ready:
            self._read_log()
        if self._wakeup_read in ready:
            os.read(self._wakeup_read, 64)
            if self._stop_deadline is not None:
                return End.OVERDUE  # told twice
            self._ask_to_stop()
            return None
        is_stopping = self._stop_deadline is not None
        link_fd = self._link.fileno() if self._link is not None else -1
        if self._server_fd in ready or (ready & {self._stub_fd, link_fd} and is_stopping):
            # Once the runtime has answered and is gone, nothing is left that the server could finish.
            return End.STOPPED if is_stopping else End.SERVER_GONE
        if ready & {self._stub_fd, link_fd}:
            return End.RUNTIME_GONE
        return End.OVERDUE if is_stopping and timeout_s == 0.0 else None

    def _ask_to_stop(self) -> None:
        notify("STOPPING=1")
        self._log.info("host.stopping", limit=self._config.stop_timeout_s)
        self._stop_deadline = time.monotonic() + self._config.stop_timeout_s
        signal.pidfd_send_signal(self._server_fd, signal.SIGTERM)

    def _read_log(self) -> None:
        """Everything that the pipe holds now."""
        while data := self._pipe.read(1 << 16):
            self._triton_log.feed(data)
        if data == b"" and self._pipe_is_open:
            self._pipe_is_open = False
            self._poll.unregister(self._pipe.fileno())

    def _end_group(self) -> None:
        """Nothing of the group outlives this. The unreaped server keeps its number from being anyone else's."""
        os.killpg(self._server.pid, signal.SIGKILL)
        try:
            self._server.wait(REAP_S)
        except subprocess.TimeoutExpired:
            self._log.error("host.not_reaped", pid=self._server.pid)
        deadline = time.monotonic() + REAP_S
        while time.monotonic() < deadline:
            try:
                if os.waitpid(-self._server.pid, os.WNOHANG) == (0, 0):
                    time.sleep(READY_POLL_S)
            except ChildProcessError:
                break
        self._read_log()
