"""Readiness as the service manager hears it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tie.servicekit.notify import notify


def test_without_a_manager_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert notify("READY=1") is False


def test_the_manager_hears_every_assignment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        assert notify("READY=1", "STATUS=serving")
        assert manager.recv(256) == b"READY=1\nSTATUS=serving"
