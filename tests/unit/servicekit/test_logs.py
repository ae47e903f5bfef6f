"""What a log line may hold."""

from __future__ import annotations

import json
import subprocess
import sys

from tie.servicekit.logs import failure_place

SCRIPT = """
from tie.servicekit import logs
logs.configure("sample", "info")
logs.logger().debug("below.level", reason="x")
logs.logger().info("sample.event", reason="r", prompt_tokens=3, prompt="MARKER")
"""


def test_unlisted_fields_and_lower_levels_are_not_written() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    (line,) = done.stderr.splitlines()
    record = json.loads(line)
    assert (record["event"], record["process"], record["prompt_tokens"]) == ("sample.event", "sample", 3)
    assert "MARKER" not in done.stderr


def test_a_failure_is_named_by_type_and_place_only() -> None:
    try:
        raise ValueError("MARKER")
    except ValueError as error:
        fields = failure_place(error)
    assert fields["error_type"] == "ValueError"
    assert fields["location"].startswith("test_logs.py:")
    assert "MARKER" not in str(fields)
