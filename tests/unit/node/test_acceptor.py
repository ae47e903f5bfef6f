"""The acceptor with small programs in the app's place; the real listening socket, the real spawn."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from tie.contracts.paths import RunPaths
from tie.node import acceptor, rundir
from tie.node.acceptor import Acceptor, app_environment
from tie.servicekit import logs
from tie.servicekit.listening import listen_unix

ANSWER = """
import json, os, socket, sys
from tie.servicekit.listening import accepted_connection
names = dict(os.environ)
connection = accepted_connection()
descriptors = sorted(int(name) for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}"))
report = {"pid": os.getpid(), "names": names, "descriptors": descriptors, "flags": sys.flags.safe_path}
connection.sendall(json.dumps(report).encode())
connection.recv(1)
sys.exit(int(os.environ.get("WANTED_EXIT", "0")))
"""
STUBBORN = """
import signal, time
from tie.servicekit.listening import accepted_connection
signal.signal(signal.SIGTERM, signal.SIG_IGN)
accepted_connection().sendall(b"!")
while True:
    time.sleep(60)
"""


@pytest.fixture
def lines() -> io.StringIO:
    captured = io.StringIO()
    logs.configure("acceptor", "debug")
    structlog.configure(logger_factory=structlog.WriteLoggerFactory(file=captured), cache_logger_on_first_use=False)
    return captured


Serving = Callable[..., "contextmanager[Path]"]


@contextmanager
def serving(paths: RunPaths, code: str, **environment: str) -> Iterator[Path]:
    """An acceptor that runs `code` for each connection; it has ended, with all its children, afterwards."""
    rundir.prepare(paths)
    stop, asked = socket.socketpair()
    command = [sys.executable, "-P", "-s", "-c", code]
    with listen_unix(paths.app_socket) as listener, stop, asked:
        given = {**app_environment(str(paths.root)), **environment}
        running = Acceptor(listener, asked, command, given)
        thread = threading.Thread(target=running.run)
        thread.start()
        try:
            yield paths.app_socket
        finally:
            stop.send(b"!")
            thread.join(20)
            assert not thread.is_alive()


def connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(15)
    connection.connect(str(path))
    return connection


def report(connection: socket.socket) -> dict[str, object]:
    text = b""
    while not text.endswith(b"}"):
        more = connection.recv(65536)
        assert more, "the app ended without a word"
        text += more
    found: dict[str, object] = json.loads(text)
    return found


def events(lines: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def test_a_stranger_is_refused_and_starts_nothing(
    paths: RunPaths, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.geteuid()
    with serving(paths, ANSWER) as path:
        monkeypatch.setattr(os, "geteuid", lambda: real + 1)
        with connect(path) as connection:
            assert connection.recv(1) == b""
    assert {"connection.refused"} <= {str(event["event"]) for event in events(lines)}
    assert "app.started" not in lines.getvalue()


def test_beyond_the_cap_a_connection_is_closed_and_a_freed_place_is_used(
    paths: RunPaths, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "MAX_INSTANCES", 1)
    with serving(paths, ANSWER) as path:
        with connect(path) as first:
            report(first)
            with connect(path) as second:
                assert second.recv(1) == b""
        while "app.ended" not in lines.getvalue():
            pass
        with connect(path) as third:
            assert report(third)


def test_an_app_that_cannot_be_started_costs_only_its_connection(
    paths: RunPaths, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise BlockingIOError(11, "no more processes")

    with serving(paths, ANSWER) as path:
        with monkeypatch.context() as patched:
            patched.setattr(os, "posix_spawn", refuse)
            with connect(path) as connection:
                assert connection.recv(1) == b""
        with connect(path) as connection:
            assert report(connection)


def test_every_connection_has_a_fresh_process_that_inherits_only_its_connection(
    paths: RunPaths, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "of the shell")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with serving(paths, ANSWER) as path, connect(path) as first, connect(path) as second:
        reports = [report(first), report(second)]
    assert reports[0]["pid"] != reports[1]["pid"]
    for found in reports:
        names = found["names"]
        assert isinstance(names, dict)
        assert names["LISTEN_PID"] == str(found["pid"])
        assert names["LISTEN_FDS"] == "1"
        assert not {"A_SECRET", "http_proxy"} & set(names)
        assert found["descriptors"] == [0, 1, 2, 3]
        assert found["flags"] is True


def test_how_an_app_ended_is_said(paths: RunPaths, lines: io.StringIO) -> None:
    with serving(paths, ANSWER, WANTED_EXIT="7") as path:
        with connect(path) as connection:
            pid = report(connection)["pid"]
        while "app.ended" not in lines.getvalue():
            pass
    (ended,) = [event for event in events(lines) if event["event"] == "app.ended"]
    assert (ended["job"], ended["exit_code"]) == (pid, 7)


def test_stopping_ends_what_ignores_sigterm(
    paths: RunPaths, lines: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "STOP_GRACE_S", 0.3)
    with serving(paths, STUBBORN) as path:
        connection = connect(path)
        assert connection.recv(1) == b"!"
    connection.close()
    (ended,) = [event for event in events(lines) if event["event"] == "app.ended"]
    assert ended["signal"] == 9


def test_no_descriptor_is_left_after_many(paths: RunPaths, lines: io.StringIO) -> None:
    quick = "from tie.servicekit.listening import accepted_connection; accepted_connection()"
    with serving(paths, quick) as path:
        with connect(path) as connection:
            assert connection.recv(1) == b""
        while lines.getvalue().count("app.ended") < 1:
            pass
        before = set(os.listdir("/proc/self/fd"))
        for _ in range(5):
            with connect(path) as connection:
                assert connection.recv(1) == b""
        while lines.getvalue().count("app.ended") < 6:
            pass
        assert set(os.listdir("/proc/self/fd")) == before
