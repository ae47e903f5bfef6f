"""leash.py COMMAND...: becomes COMMAND, which the kernel sends SIGTERM when the process that started it ends.

Run by path with `python -I -S`: it stands before every process of a node, so it imports next to nothing.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> None:
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel refused PR_SET_PDEATHSIG")
    if os.getppid() != parent:  # it ended before the kernel knew what to do about that
        sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - the launcher's own command


if __name__ == "__main__":
    main(sys.argv[1:])
