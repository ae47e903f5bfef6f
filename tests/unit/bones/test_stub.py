"""The stub says what the library is."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from tie import bones

ROOT = Path(__file__).parents[3]


def run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(240)
def test_stub_and_library_agree() -> None:
    run("mypy.stubtest", "tie.bones._native", "--mypy-config-file", "pyproject.toml")


@pytest.mark.timeout(240)
def test_the_stub_is_strict() -> None:
    run("mypy", "--strict", "src/tie/bones")


def test_every_error_is_a_bones_error() -> None:
    for error in (bones.BatchError, bones.DescriptionError, bones.WeightsError):
        assert issubclass(error, bones.BonesError)


def test_everything_exported_is_documented() -> None:
    for name in bones.__all__:
        assert inspect.getdoc(getattr(bones, name))
