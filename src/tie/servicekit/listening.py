"""Unix sockets as a daemon owns them: permissions before the first connection, no stale file, systemd's protocol."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from tie.contracts.errors import ConfigError
from tie.contracts.paths import SOCKET_PATH_LIMIT

FIRST_PASSED_FD: Final = 3


def listen_unix(path: Path, kind: socket.SocketKind = socket.SOCK_STREAM, backlog: int = 128) -> socket.socket:
    """A listening socket at `path`, for our own uid and group only (0660), replacing a stale one.

    Raises ConfigError when the path is longer than the kernel takes.
    """
    check_socket_path(path)
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, kind)
    previous = os.umask(0o117)
    try:
        listener.bind(str(path))
    finally:
        os.umask(previous)
    listener.listen(backlog)
    return listener


def check_socket_path(path: Path) -> None:
    """Raises ConfigError when `path` does not fit the kernel's socket address."""
    if (size := len(os.fsencode(path))) > SOCKET_PATH_LIMIT:
        raise ConfigError(
            f"socket path has {size} bytes, the kernel takes {SOCKET_PATH_LIMIT}: choose a shorter run directory"
        )


def accepted_connection() -> socket.socket:
    """The one connection that systemd's Accept=yes, or the launcher's acceptor, passed to this process.

    Raises ConfigError when the environment does not name exactly one for this process.
    """
    pid, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or count != "1":
        raise ConfigError("started without exactly one accepted connection (LISTEN_PID, LISTEN_FDS)")
    os.set_inheritable(FIRST_PASSED_FD, False)
    return socket.socket(fileno=FIRST_PASSED_FD)
