"""Reads the JSON lines that a node's processes wrote to RUN/logs; follows them while they grow."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tie.contracts.paths import RunPaths

_TAIL_BYTES: Final = 64 * 1024
_LAST_LINES: Final = 12
_GRAVITY: Final = {"warning": 2, "error": 4, "critical": 4}


def last_words(paths: RunPaths, process: str) -> str:
    """Why a process ended, as far as it said so on standard error: the gravest of its last lines, the latest of those.

    A line that is not ours (an interpreter's last word) is as grave as an error.
    """
    told = [found for line in _tail(paths.logs / f"{process}.jsonl")[-_LAST_LINES:] if (found := _complaint(line))]
    return max(enumerate(told), key=lambda item: (item[1][0], item[0]))[1][1] if told else "nothing"


def parse(line: str) -> dict[str, Any] | None:
    """The line as an entry; None when it is not one of ours."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and "event" in entry else None


def entries(paths: RunPaths) -> Iterator[dict[str, Any]]:
    """Every entry of every process, file by file."""
    for path in sorted(paths.logs.glob("*.jsonl*")):
        for line in path.read_text("utf-8", "replace").splitlines():
            if (entry := parse(line)) is not None:
                yield entry


class Follower:
    """What a file gained since the last look. A rotated file is read from its beginning again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.is_file() else 0

    def new_entries(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                if file.seek(0, 2) < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                data = file.read()
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        found = (parse(line) for line in whole.decode("utf-8", "replace").splitlines())
        return [entry for entry in found if entry is not None]


def _complaint(line: str) -> tuple[int, str] | None:
    """How grave a line is, and what it says in short."""
    entry = parse(line)
    if entry is None:
        is_frame = not line.strip() or line.startswith((" ", "\t", "Traceback"))
        return None if is_frame else (_GRAVITY["error"], line.strip())
    # Triton calls its own errors E; the runtime's host passes them on as warnings.
    gravity = _GRAVITY.get(str(entry.get("level")), 0) + (entry.get("kind") == "E")
    return gravity, _phrase(entry)


def _phrase(entry: dict[str, Any]) -> str:
    named = ("reason", "error_type", "outcome", "location", "status", "path", "observed", "limit")
    words = (str(entry[name]).strip('"') for name in named if entry.get(name) not in (None, ""))
    details = ", ".join(word.partition("\n")[0].partition("\\n")[0] for word in words)
    return f"{entry['event']}: {details}" if details else str(entry["event"])


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
            return file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
