"""A run directory: ours alone, prepared before a node starts and cleared of everything but logs when it has stopped."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tie.contracts.errors import ConfigError
from tie.contracts.paths import RunPaths
from tie.servicekit.listening import check_socket_path

INFERENCE_GROUP_MODE = 0o2750
"""Of the directory with Triton's socket: who may infer is who is in the directory's group."""

_AWKWARD = frozenset("\"'\\;#")


def supervisor_socket(paths: RunPaths) -> Path:
    return paths.root / "supervisor.sock"


def supervisor_config(paths: RunPaths) -> Path:
    return paths.root / "supervisord.conf"


def restart_counts(paths: RunPaths) -> Path:
    return paths.root / "restarts.json"


def check_socket_lengths(paths: RunPaths) -> None:
    """Raises ConfigError when a socket below this run directory would have too long a path."""
    sockets = (paths.node_state_socket, paths.key_custody_socket, paths.key_protection_socket, paths.app_socket)
    runtime = (paths.triton_socket, paths.runtime_socket, paths.runtime_control_socket)
    for path in (*sockets, *runtime, supervisor_socket(paths)):
        check_socket_path(path)


def prepare(paths: RunPaths) -> None:
    """Makes every directory, private to us. Raises ConfigError when one is somebody else's or cannot be made."""
    if _AWKWARD & set(str(paths.root)) or not str(paths.root).isprintable():
        raise ConfigError("the run directory's path must be of plain characters: supervisord's settings name it")
    check_socket_lengths(paths)
    runtime = paths.runtime_socket.parent
    try:
        paths.root.parent.mkdir(parents=True, exist_ok=True)
        for directory in paths.directories():
            directory.mkdir(mode=0o700, exist_ok=True)
            check_ours(directory)
            directory.chmod(INFERENCE_GROUP_MODE if directory == runtime else 0o700)
    except OSError as error:
        raise ConfigError(f"run directory {paths.root}: {error.strerror}: {error.filename}") from error


def check_ours(directory: Path) -> None:
    """Raises ConfigError unless this is a directory, no link, of our own uid."""
    # Not followed: a link planted under a predictable name in /tmp must not choose where our sockets are.
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(f"{directory} is not a directory")
    if found.st_uid != os.geteuid():
        raise ConfigError(f"{directory} belongs to uid {found.st_uid}, not to us (uid {os.geteuid()})")


@contextmanager
def lock(paths: RunPaths) -> Iterator[None]:
    """Held while a node is started or stopped here. Raises ConfigError when somebody else holds it."""
    descriptor = os.open(paths.root / "launch.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another `tie up` or `tie down` is at work in {paths.root}") from error
        yield
    finally:
        os.close(descriptor)


def clear(paths: RunPaths) -> None:
    """Removes what a stopped node leaves: sockets, its address, its process list. Logs and settings stay."""
    for directory in paths.directories():
        if directory != paths.logs and directory.is_dir():
            for entry in directory.iterdir():
                if entry.is_socket():
                    entry.unlink(missing_ok=True)
    for path in (paths.cloudboard_address, restart_counts(paths), paths.root / "supervisord.pid"):
        path.unlink(missing_ok=True)


def sockets_left(paths: RunPaths) -> list[Path]:
    """Socket files below the run directory, for whoever checks that a stopped node left none."""
    return [path for path in paths.root.rglob("*") if path.is_socket()] if paths.root.is_dir() else []
