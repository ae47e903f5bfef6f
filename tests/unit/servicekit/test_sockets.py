"""Peers and sockets: refused unless the kernel vouches for them."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from tie.contracts.errors import ConfigError, NotAdmitted
from tie.servicekit import peers
from tie.servicekit.listening import accepted_connection, listen_unix


def test_a_foreign_uid_is_not_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    with ours, theirs:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        with pytest.raises(NotAdmitted, match="is not admitted"):
            peers.admit(ours)
        assert peers.admit(ours, extra_uids=[os.getuid()]).pid == os.getpid()


def test_the_unmapped_uid_never_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "credentials", lambda _: peers.Peer(1, peers.UNMAPPED_UID, 1))
    left, right = socket.socketpair(socket.AF_UNIX)
    with left, right, pytest.raises(NotAdmitted):
        peers.admit(left, extra_uids=[peers.UNMAPPED_UID])


def test_a_path_that_the_kernel_would_cut_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the kernel takes 107"):
        listen_unix(tmp_path / ("x" * 120))


def test_a_stale_socket_is_replaced_and_others_are_kept_out(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    listen_unix(path).close()
    with listen_unix(path) as listener, socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        listener.accept()[0].close()


@pytest.mark.parametrize(("pid", "count"), [("", ""), ("1", "1"), ("self", "2"), ("self", "")])
def test_only_one_connection_for_this_process_is_taken(monkeypatch: pytest.MonkeyPatch, pid: str, count: str) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()) if pid == "self" else pid)
    monkeypatch.setenv("LISTEN_FDS", count)
    with pytest.raises(ConfigError, match="without exactly one accepted connection"):
        accepted_connection()
