"""Finds the processes of a run directory in /proc, whoever started them and whether or not their parent still lives."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tie.contracts.paths import RunPaths
from tie.node import rundir
from tie.node.programs import ENVIRONMENT_MARK

PROC: Final = Path("/proc")
_POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc showed it. The start time tells it from a later one with the same pid."""

    pid: int
    parent: int
    start_ticks: int
    arguments: tuple[str, ...]
    is_marked: bool

    @property
    def title(self) -> str:
        """What it runs, for people: the module of a Python process, else the program's name."""
        words = list(self.arguments)
        if "-m" in words[:-1]:
            return words[words.index("-m") + 1]
        return Path(words[0]).name if words else f"pid {self.pid}"


def of_node(paths: RunPaths) -> list[Process]:
    """Every live process of ours that serves this run directory, with its descendants."""
    everything = {process.pid: process for process in _ours(str(paths.root))}
    found = {pid for pid, process in everything.items() if process.is_marked or serves(process.arguments, paths)}
    while more := {pid for pid, process in everything.items() if process.parent in found} - found:
        found |= more
    return [everything[pid] for pid in sorted(found - _caller_and_ancestors())]


def _caller_and_ancestors() -> set[int]:
    """Never part of the node, whatever their arguments are: a `tie up --config RUN/node.toml` among them."""
    lineage, pid = set(), os.getpid()
    while pid > 0 and (process := read(pid)) is not None:
        lineage.add(pid)
        pid = process.parent
    return lineage


def supervisord_of(paths: RunPaths) -> Process | None:
    """The supervisor of this run directory, if it lives."""
    config = str(rundir.supervisor_config(paths))
    return next((process for process in _ours(str(paths.root)) if _has_pair(process.arguments, "-c", config)), None)


def serves(arguments: tuple[str, ...], paths: RunPaths) -> bool:
    """True when a command line is one that a node of this run directory has, and no tool's that merely names it."""
    return (
        _has_pair(arguments, "--config", str(paths.config))
        or _has_pair(arguments, "-c", str(rundir.supervisor_config(paths)))
        or _has_pair(arguments, "--grpc-address", f"unix:{paths.triton_socket_stem}")
    )


def end(paths: RunPaths, grace_s: float) -> list[Process]:
    """SIGTERM, after `grace_s` SIGKILL, until none of this run directory is left; what stays is returned."""
    for number, bound_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 5.0)):
        deadline = time.monotonic() + bound_s
        send(of_node(paths), number)
        while (left := of_node(paths)) and time.monotonic() < deadline:
            if number == signal.SIGKILL:
                send(left, number)  # what was forked meanwhile
            time.sleep(_POLL_S)
        if not left:
            return []
    return left


def send(targets: Iterable[Process], number: signal.Signals) -> None:
    """Sends a signal to exactly these processes: a pid that was given to another one since is left alone."""
    for target in targets:
        try:
            descriptor = os.pidfd_open(target.pid)
        except ProcessLookupError:
            continue
        try:
            now = read(target.pid)
            if now is not None and now.start_ticks == target.start_ticks:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)


def read(pid: int, mark: str = "") -> Process | None:
    """The process with this pid; None when there is none, or only its zombie."""
    directory = PROC / str(pid)
    try:
        after_name = (directory / "stat").read_bytes().rpartition(b")")[2].split()
        arguments = (directory / "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    if after_name[0] in (b"Z", b"X"):
        return None
    words = tuple(os.fsdecode(word) for word in arguments.split(b"\0")[:-1])
    return Process(pid, int(after_name[1]), int(after_name[19]), words, bool(mark) and _is_marked(directory, mark))


def _ours(mark: str) -> Iterable[Process]:
    uid = os.geteuid()
    for entry in PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            # The owner of /proc/PID is root for a process that is not dumpable, so ownership is asked of `status`.
            is_ours = _uid(entry) == uid
            process = read(int(entry.name), mark) if is_ours else None
        except (FileNotFoundError, ProcessLookupError):
            continue
        if process is not None:
            yield process


def _uid(directory: Path) -> int:
    status = (directory / "status").read_bytes()
    return int(status.partition(b"\nUid:")[2].split(None, 2)[1])


def _is_marked(directory: Path, mark: str) -> bool:
    wanted = os.fsencode(f"{ENVIRONMENT_MARK}={mark}")
    try:
        return wanted in (directory / "environ").read_bytes().split(b"\0")
    except OSError:  # not dumpable: such processes are known by their command line or their parent
        return False


def _has_pair(arguments: tuple[str, ...], first: str, second: str) -> bool:
    return any(pair == (first, second) for pair in itertools.pairwise(arguments))
