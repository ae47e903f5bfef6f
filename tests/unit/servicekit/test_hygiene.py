"""What a process gives up before it sees anything private."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource
from tie.servicekit import hygiene
hygiene.harden(); hygiene.limit_cpu(7)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_CPU), status["NoNewPrivs"].strip())
"""


def test_no_core_no_privileges_and_bounded_cpu() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["(0,", "0)", "(7,", "8)", "1"]
