"""A /dev/shm of its own, with privileges and without. Each case is a process: a namespace cannot be given back."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tie.afm_runtime.confinement import take_private_shm

SCRIPT = """
import json, os
from pathlib import Path
from tie.afm_runtime.confinement import take_private_shm
taken = take_private_shm()
print(json.dumps([taken, os.listdir("/dev/shm"), os.geteuid()]))
if taken:
    Path("/dev/shm/inside").touch()
"""


@pytest.fixture
def marker() -> Iterator[Path]:
    path = Path("/dev/shm") / f"tie-test-{uuid.uuid4().hex}"
    path.touch()
    yield path
    path.unlink()


def confined(*wrapper: str) -> tuple[bool, list[str], int]:
    command = [*wrapper, sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    taken, seen, uid = json.loads(done.stdout)
    return taken, seen, uid


def without_privileges() -> list[str]:
    if os.geteuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv to drop privileges with")
    return ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin"]


def test_as_root_the_outside_is_not_seen_and_sees_nothing(marker: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root")
    taken, seen, uid = confined()
    if not taken:
        pytest.skip("no mount namespace may be made here")
    assert (seen, uid) == ([], 0)
    assert not Path("/dev/shm/inside").exists()


def test_without_privileges_a_user_namespace_does_the_same(marker: Path) -> None:
    taken, seen, uid = confined(*without_privileges())
    if not taken:
        pytest.skip("no user namespace may be made here")
    assert (seen, uid) == ([], os.geteuid())
    assert not Path("/dev/shm/inside").exists()


def test_no_user_namespace_where_it_would_hide_an_admitted_uid(marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert not take_private_shm([1001])
    assert marker.name in os.listdir("/dev/shm")
