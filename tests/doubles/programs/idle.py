"""Does nothing until it is told to end, and has a child that does the same."""

from __future__ import annotations

import subprocess
import sys

from tie.node.stop_signal import stop_signal


def main() -> None:
    with stop_signal() as stop:
        child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
        stop.recv(1)
        child.terminate()
        child.wait()


if __name__ == "__main__":
    main()
