"""A /dev/shm of the runtime's own: Triton's region is readable to every uid that sees it, whatever the umask.

The host takes a mount namespace with an empty tmpfs there before it starts anything; what is left in it ends with the
last process. As root that is plain; otherwise it takes a user namespace, where those are allowed.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Collection
from pathlib import Path
from typing import Final

CLONE_NEWNS: Final = 0x00020000
CLONE_NEWUSER: Final = 0x10000000
MS_NOSUID: Final = 2
MS_NODEV: Final = 4
MS_NOEXEC: Final = 8
MS_REC: Final = 0x4000
MS_PRIVATE: Final = 1 << 18
SHM: Final = "/dev/shm"  # noqa: S108 - the place itself is meant


def take_private_shm(admitted_uids: Collection[int] = ()) -> bool:
    """Whether this process and all that it starts now see a /dev/shm of their own. Call before any thread exists."""
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0 and set(admitted_uids) - {uid}:
        return False  # in a user namespace other uids look alike: SO_PEERCRED could admit none of them
    assert threading.active_count() == 1, "the kernel gives a namespace to a process with one thread only"
    try:
        if not _unshare(CLONE_NEWNS):
            if not _unshare(CLONE_NEWUSER | CLONE_NEWNS):
                return False
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        return _mount(None, "/", None, MS_REC | MS_PRIVATE, None) and _mount(
            "tmpfs", SHM, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=1777"
        )
    except OSError:
        return False


def _unshare(flags: int) -> bool:
    return bool(ctypes.CDLL(None).unshare(flags) == 0)


def _mount(source: str | None, target: str, kind: str | None, flags: int, data: str | None) -> bool:
    encoded = [None if text is None else text.encode() for text in (source, target, kind, data)]
    libc = ctypes.CDLL(None)
    return bool(libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3]) == 0)
