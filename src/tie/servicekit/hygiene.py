"""What a process that handles private data gives up before it handles any."""

from __future__ import annotations

import ctypes
import resource

PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def harden() -> None:
    """No core dumps, no ptrace by our own uid, no new privileges. Raises OSError when the kernel refuses."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _prctl(PR_SET_DUMPABLE, 0)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)


def die_with_parent(signal_number: int) -> None:
    """The kernel sends `signal_number` to this process when the thread that started it ends."""
    _prctl(PR_SET_PDEATHSIG, signal_number)


def adopt_orphans() -> None:
    """Processes below this one whose parent ends become its children, so that it can wait for them."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def limit_cpu(seconds: int) -> None:
    """CPU time of this process; past it the kernel ends it."""
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _prctl(option: int, argument: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"prctl option {option} refused")
