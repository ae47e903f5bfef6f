from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from tie.contracts.paths import RunPaths
from tie.node import herald, log_lines, rundir
from tie.node.herald import Ledger
from tie.servicekit import logs

LOG = """\
2026-12-01 03:00:00,000 INFO exited: lease (exit status 0; expected)
2026-12-01 03:00:01,000 WARN exited: cloudboardd (terminated by SIGKILL; not expected)
2026-12-01 03:00:02,000 WARN exited: lease2 (exit status 9; not expected)
"""


@pytest.fixture(autouse=True)
def quiet() -> None:
    logs.configure("supervisor")


def event(name: str, payload: str) -> str:
    return f"ver:3.0 server:supervisor serial:1 pool:herald poolserial:1 eventname:{name} len:{len(payload)}\n{payload}"


def test_no_ledger_or_a_broken_one_is_no_count(paths: RunPaths) -> None:
    assert herald.read_ledger(paths) == {}
    rundir.restart_counts(paths).write_text("[1, 2")
    assert herald.read_ledger(paths) == {}
    rundir.restart_counts(paths).write_text("[1, 2]")
    assert herald.read_ledger(paths) == {}


def test_the_last_word_on_an_end_is_the_right_processes(tmp_path: Path) -> None:
    log = tmp_path / "supervisord.log"
    assert herald.how_it_ended(log, "lease") == "unknown"
    log.write_text(LOG)
    assert herald.how_it_ended(log, "cloudboardd") == "terminated by SIGKILL"
    assert herald.how_it_ended(log, "lease") == "exit status 0"
    assert herald.how_it_ended(log, "acceptor") == "unknown"


def test_events_are_answered_and_counted(paths: RunPaths) -> None:
    rundir.prepare(paths)
    (paths.logs / "supervisord.log").write_text(LOG)
    name = "processname:cloudboardd groupname:cloudboardd from_state:RUNNING"
    events = "".join(
        (
            event("PROCESS_STATE_STARTING", f"{name} tries:0"),
            event("PROCESS_STATE_RUNNING", f"{name} pid:1"),
            event("PROCESS_STATE_EXITED", f"{name} expected:0 pid:1"),
            event("PROCESS_STATE_STARTING", f"{name} tries:0"),
            event("TICK_5", "when:1"),
        )
    )
    answers = io.StringIO()
    herald.listen(io.StringIO(events), answers, Ledger(paths))
    assert answers.getvalue() == "READY\nRESULT 2\nOK" * 5 + "READY\n"
    assert herald.read_ledger(paths) == {"cloudboardd": {"restarts": 1, "last_end": "terminated by SIGKILL"}}


def test_last_words_prefer_our_own_lines(paths: RunPaths) -> None:
    rundir.prepare(paths)
    log = paths.logs / "x.jsonl"
    assert log_lines.last_words(paths, "x") == "nothing"
    log.write_text('Traceback (most recent call last):\n  File "x"\nValueError: wrong\n')
    assert log_lines.last_words(paths, "x") == "ValueError: wrong"
    log.write_text(json.dumps({"event": "start.refused", "reason": "no bundle", "pid": 3}) + "\n\n")
    assert log_lines.last_words(paths, "x") == "start.refused: no bundle"


def test_last_words_are_the_gravest_and_the_latest(paths: RunPaths) -> None:
    rundir.prepare(paths)
    said = [
        {"event": "early", "level": "error", "reason": "of a run before"},
        *[{"event": "filler", "level": "info"}] * 8,
        {"event": "triton.says", "level": "warning", "kind": "E", "reason": '"weights: too short\\nAt: files.py"'},
        {"event": "triton.says", "level": "warning", "kind": "W", "reason": "no model"},
        {"event": "helper.ended", "level": "warning", "reason": "gone"},
        {"event": "host.ended", "level": "info"},
    ]
    (paths.logs / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said))
    assert log_lines.last_words(paths, "x") == "triton.says: weights: too short"


def test_a_follower_sees_whole_new_lines_once_and_survives_rotation(paths: RunPaths) -> None:
    rundir.prepare(paths)
    log = paths.logs / "supervisor.jsonl"
    log.write_text('{"event": "old"}\n')
    follower = log_lines.Follower(log)
    with log.open("a") as file:
        file.write('{"event": "new"}\nnot ours\n{"event": "ha')
    assert [entry["event"] for entry in follower.new_entries()] == ["new"]
    with log.open("a") as file:
        file.write('lf"}\n')
    assert [entry["event"] for entry in follower.new_entries()] == ["half"]
    log.write_text('{"event": "rotated"}\n')
    assert [entry["event"] for entry in follower.new_entries()] == ["rotated"]
    log.unlink()
    assert follower.new_entries() == []
