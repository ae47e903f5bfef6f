"""containers/afm-runtime/unpack-triton.sh: quick when there is nothing to do, and harmless when it cannot do it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "containers" / "afm-runtime" / "unpack-triton.sh"
UNPACKED = ROOT / "build" / "triton"


def unpack(destination: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_NO_CACHE_DIR": "1", "PYTHON": sys.executable}
    return subprocess.run(
        [SCRIPT, str(destination)], env=environment, capture_output=True, text=True, timeout=25, check=False
    )


@pytest.fixture
def unpacked(tmp_path: Path) -> Path:
    """A copy of the links and the stamp only: as much as the script looks at."""
    if not (UNPACKED / "stamp").exists():
        pytest.skip("Triton has not been unpacked here")
    copy = tmp_path / "triton"
    copy.mkdir()
    shutil.copy(UNPACKED / "stamp", copy)
    return copy


def test_what_cannot_be_fetched_leaves_no_half_of_it(tmp_path: Path) -> None:
    assert unpack(tmp_path / "triton").returncode != 0
    assert [path.name for path in tmp_path.iterdir()] == ["triton.lock"]


def test_an_older_one_stays_until_the_newer_is_whole(unpacked: Path) -> None:
    (unpacked / "stamp").write_text("older\n")
    assert unpack(unpacked).returncode != 0
    assert (unpacked / "stamp").read_text() == "older\n"


def test_the_rest_of_an_interrupted_run_goes(tmp_path: Path) -> None:
    (tmp_path / "triton.new.ABCDEF").mkdir()
    (tmp_path / "triton.new.ABCDEF" / "file").touch()
    unpack(tmp_path / "triton")
    assert not (tmp_path / "triton.new.ABCDEF").exists()


def test_nothing_is_done_twice(unpacked: Path) -> None:
    done = unpack(unpacked)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_stub_gets_the_python_that_runs_this(unpacked: Path) -> None:
    (library,) = (UNPACKED / "nvidia_pytriton.libs").glob("libpython3.*.so.1.0")
    assert library.resolve().name == f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    assert (UNPACKED / "model_repository").resolve() == SCRIPT.parent / "model_repository"
