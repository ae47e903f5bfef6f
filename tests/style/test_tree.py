"""Promises about the tree itself: names, log fields, documents, and what must never be written down."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tie.contracts.telemetry import FIELDS

ROOT = Path(__file__).parents[2]
LOG_METHODS = {"debug", "info", "warning", "error", "critical"}


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def our_python() -> list[Path]:
    return [path for path in tracked("src/*.py") if "/api/" not in str(path)]


def log_calls(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOG_METHODS):
            continue
        owner = ast.unparse(node.func.value)
        if owner.rsplit(".", 1)[-1] in {"log", "_log", "logger()", "LOG"}:
            yield node


def test_log_calls_use_listed_fields_and_constant_events() -> None:
    wrong = []
    for path in our_python():
        for call in log_calls(ast.parse(path.read_text())):
            place = f"{path.relative_to(ROOT)}:{call.lineno}"
            if len(call.args) != 1 or not isinstance(call.args[0], ast.Constant):
                wrong.append(f"{place}: the event is not one constant")
            wrong += [
                f"{place}: {keyword.arg}" for keyword in call.keywords if keyword.arg and keyword.arg not in FIELDS
            ]
    assert not wrong, wrong


def test_every_listed_log_field_is_lower_case() -> None:
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name in FIELDS)


def test_no_module_is_named_after_nothing() -> None:
    assert not [path for path in our_python() if path.stem in {"utils", "util", "helpers", "common", "manager", "misc"}]


def test_no_pickle_eval_or_shell() -> None:
    banned = re.compile(r"\b(import pickle|import marshal|import shelve|eval\(|exec\(|shell=True|yaml\.load)\b")
    hits = [str(path) for path in our_python() if banned.search(path.read_text()) and path.name != "test_tree.py"]
    assert not hits


def test_inits_hold_no_logic() -> None:
    for path in our_python():
        if path.name != "__init__.py":
            continue
        for node in ast.parse(path.read_text()).body:
            assert isinstance(node, ast.Expr | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign), (
                f"{path}: {ast.dump(node)[:80]}"
            )


def test_every_module_says_what_it_is_for() -> None:
    assert not [str(path) for path in our_python() if not ast.get_docstring(ast.parse(path.read_text()))]


def test_functions_stay_readable() -> None:
    long = []
    for path in our_python():
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.end_lineno
                and node.end_lineno - node.lineno > 50
            ):
                long.append(f"{path.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not long, long


def test_files_tell_one_story() -> None:
    assert not [str(path) for path in [*our_python(), *tracked("bones/*.rs")] if path.read_text().count("\n") > 500]


@pytest.mark.parametrize(
    "document", [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md"], ids=lambda path: path.name
)
def test_documents_name_paths_that_exist(document: Path) -> None:
    for name in re.findall(
        r"`((?:src|bones|protos|tests|containers|docs|bench|\.ci)/[\w./-]*\w)`", document.read_text()
    ):
        assert (ROOT / name).exists(), f"{document.name} names {name}"


def test_locks_hold_hashes_and_no_index_addresses() -> None:
    for lock in tracked("requirements*.lock"):
        text = lock.read_text()
        assert "://" not in text, lock
        for entry in re.findall(r"^[a-z0-9][^\n]*==[^\n]*", text, re.M):
            assert entry.rstrip().endswith("\\"), f"{lock.name}: {entry} has no hash"
