"""The linters, as tests: a tree that does not pass them is a tree that is broken."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]


def test_ruff_finds_nothing() -> None:
    run(f"{BIN}/ruff", "check", "src", "tests", "bench")


def test_python_is_formatted() -> None:
    run(f"{BIN}/ruff", "format", "--check", "src", "tests", "bench")


@pytest.mark.timeout(300)
def test_mypy_is_strict_and_silent() -> None:
    run(f"{BIN}/mypy", "--no-error-summary")


def test_imports_go_one_way_down() -> None:
    run(f"{BIN}/lint-imports", "--no-cache")


def test_generated_code_is_current() -> None:
    run("bash", ".ci/protos.sh", "--check")


@pytest.mark.timeout(600)
def test_clippy_finds_nothing() -> None:
    if shutil.which("cargo-clippy") is None:
        pytest.skip("clippy is not installed with this Rust")
    run("cargo", "clippy", "--workspace", "--all-targets", "--release", "--quiet", "--", "-D", "warnings")


def test_rust_is_formatted() -> None:
    if shutil.which("rustfmt") is None:
        pytest.skip("rustfmt is not installed with this Rust")
    run("cargo", "fmt", "--all", "--check")
