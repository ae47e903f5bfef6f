"""Says what became of each process of a node: supervisord's event listener, one JSON line an event, and restart counts.

supervisord gives events on standard input and takes answers on standard output; how a process ended stands only in its
log, whose tail is read for that.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from tie.contracts.paths import RunPaths
from tie.node import rundir
from tie.servicekit import logs

_TAIL_BYTES: Final = 16 * 1024
_ENDED_STATES: Final = frozenset({"PROCESS_STATE_EXITED", "PROCESS_STATE_BACKOFF", "PROCESS_STATE_FATAL"})
_SAID_STATES: Final = _ENDED_STATES | {"PROCESS_STATE_STARTING", "PROCESS_STATE_STOPPED"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="herald", description="supervisord's event listener; not run by hand")
    parser.add_argument("--run-dir", type=Path, required=True)
    paths = RunPaths(parser.parse_args().run_dir)
    logs.configure("supervisor")
    listen(sys.stdin, sys.stdout, Ledger(paths))


def listen(events: IO[str], answers: IO[str], ledger: Ledger) -> None:
    """Takes events until standard input ends."""
    while True:
        answers.write("READY\n")
        answers.flush()
        if not (line := events.readline()):
            return
        header = _fields(line)
        payload = _fields(events.read(int(header["len"])))
        ledger.record(header["eventname"], payload)
        answers.write("RESULT 2\nOK")
        answers.flush()


class Ledger:
    """How often each process was started, kept in a file for `tie status`, and each change as a log line."""

    def __init__(self, paths: RunPaths) -> None:
        self._paths = paths
        self._starts: dict[str, int] = {}
        self._ends: dict[str, str] = {}
        self._log = logs.logger()

    def record(self, event: str, payload: Mapping[str, str]) -> None:
        name = payload.get("processname", "")
        if event not in _SAID_STATES or not name:
            return
        if event == "PROCESS_STATE_STARTING":
            self._starts[name] = self._starts.get(name, 0) + 1
            self._log.info("process.starting", name=name, attempt=self._starts[name])
        elif event == "PROCESS_STATE_STOPPED":
            self._log.info("process.stopped", name=name)
        else:
            reason = how_it_ended(self._paths.logs / "supervisord.log", name)
            self._ends[name] = reason
            self._log.warning("process.ended", name=name, reason=reason, state=event.rpartition("_")[2].lower())
        self._write()

    def _write(self) -> None:
        table = {
            name: {"restarts": count - 1, "last_end": self._ends.get(name, "")} for name, count in self._starts.items()
        }
        target = rundir.restart_counts(self._paths)
        scratch = target.with_suffix(".new")
        scratch.write_text(json.dumps(table), "utf-8")
        scratch.replace(target)


def read_ledger(paths: RunPaths) -> dict[str, dict[str, Any]]:
    """What the herald wrote last: by process name, `restarts` and `last_end`; empty where it wrote nothing yet."""
    try:
        table = json.loads(rundir.restart_counts(paths).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def how_it_ended(supervisor_log: Path, name: str) -> str:
    """supervisord's last word on the end of a process, such as `exit status 1` or `terminated by SIGKILL`."""
    try:
        with supervisor_log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            tail = file.read().decode("utf-8", "replace")
    except OSError:
        return "unknown"
    found = re.findall(rf"exited: {re.escape(name)} \((.*?)(?:; (?:not )?expected)?\)$", tail, re.MULTILINE)
    return str(found[-1]) if found else "unknown"


def _fields(text: str) -> dict[str, str]:
    pairs = (word.partition(":") for word in text.split())
    return {key: value for key, _, value in pairs}


if __name__ == "__main__":
    main()
