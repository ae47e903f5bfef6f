"""Run directories with short names, and nodes made of tiny programs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tie.contracts.paths import RunPaths
from tie.node import processes, stopping
from tie.node.programs import Program
from tie.node.settings import UpOptions

TESTS = Path(__file__).parents[2]
IDLE = Program("idle", "doubles.programs.idle", 3)
EDGE = Program("cloudboardd", "doubles.programs.edge", 3)
BROKEN = Program("broken", "doubles.programs.broken", 3)
STUBBORN = Program("stubborn", "doubles.programs.stubborn", 1)


@pytest.fixture
def paths() -> Iterator[RunPaths]:
    """A run directory; whatever a test leaves running there is ended."""
    root = Path(tempfile.mkdtemp(prefix="tie-u-", dir="/tmp"))
    made = RunPaths(root)
    yield made
    if processes.of_node(made):
        stopping.stop(made, orderly_bound_s=5)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def options(paths: RunPaths, tmp_path: Path) -> UpOptions:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "bundle.toml").write_text("")
    return UpOptions(paths.root, bundle)


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(TESTS), "A_SECRET": "of the shell"}
