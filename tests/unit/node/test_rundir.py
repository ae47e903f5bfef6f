from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from tie.contracts.errors import ConfigError
from tie.contracts.paths import RunPaths
from tie.node import rundir


def test_a_run_directory_whose_sockets_do_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the kernel takes 107"):
        rundir.prepare(RunPaths(tmp_path / ("x" * 100)))


@pytest.mark.parametrize("name", ["a\nb", "a;b", "a\\b", "a'b", 'a"b'])
def test_a_run_directory_that_a_settings_file_cannot_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="plain characters"):
        rundir.prepare(RunPaths(Path("/tmp") / name))


def test_a_link_in_its_place_is_refused(paths: RunPaths, tmp_path: Path) -> None:
    link = paths.root / "link"
    link.symlink_to(tmp_path)
    with pytest.raises(ConfigError, match="not a directory"):
        rundir.prepare(RunPaths(link))


def test_a_file_in_its_place_is_refused(paths: RunPaths) -> None:
    (paths.root / "file").touch()
    with pytest.raises(ConfigError, match=r"exists|not a directory"):
        rundir.prepare(RunPaths(paths.root / "file"))


def test_somebody_elses_directory_is_refused(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    with pytest.raises(ConfigError, match=f"belongs to uid {real}"):
        rundir.prepare(paths)


def test_directories_are_private_and_the_runtimes_passes_its_group_on(paths: RunPaths) -> None:
    rundir.prepare(paths)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in paths.directories()}
    assert modes.pop("afm") == 0o2750
    assert set(modes.values()) == {0o700}
    rundir.prepare(paths)  # repeating is harmless


def test_two_launches_at_once_exclude_each_other(paths: RunPaths) -> None:
    with rundir.lock(paths), pytest.raises(ConfigError, match="at work"), rundir.lock(paths):
        pass
    with rundir.lock(paths):
        pass


def test_clearing_takes_sockets_and_keeps_logs_and_settings(paths: RunPaths) -> None:
    rundir.prepare(paths)
    for path in (paths.app_socket, paths.triton_socket, rundir.supervisor_socket(paths)):
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
    for kept in (paths.logs / "a.jsonl", paths.config):
        kept.write_text("kept")
    paths.cloudboard_address.write_text("127.0.0.1:1")
    assert len(rundir.sockets_left(paths)) == 3
    rundir.clear(paths)
    assert rundir.sockets_left(paths) == []
    assert not paths.cloudboard_address.exists()
    assert (paths.logs / "a.jsonl").exists()
    assert paths.config.exists()
