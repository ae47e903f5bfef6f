"""What Triton leaves behind when it is killed, and how the next start, or the end of this one, takes it away.

Its shm objects carry a prefix derived from the run directory, so that another node's are never touched. Its folders
/tmp/python_env_* carry no name of ours: those that appeared while it started are noted in the run directory, and
removed only if they are empty.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from pathlib import Path
from typing import Final

from tie.contracts import triton_io
from tie.contracts.paths import RunPaths

SHM: Final = Path("/dev/shm")  # noqa: S108 - where Triton puts its regions
TEMPORARY: Final = Path("/tmp")  # noqa: S108 - Triton ignores TMPDIR
ENVIRONMENTS: Final = "python_env_*"
NOTE: Final = "leftovers.json"


def shm_prefix(paths: RunPaths) -> str:
    """Of every region that a runtime of this run directory ever makes."""
    return f"{triton_io.SHM_PREFIX}{hashlib.sha256(str(paths.root.resolve()).encode()).hexdigest()[:12]}_"


def new_shm_prefix(paths: RunPaths) -> str:
    """Of the regions of one start: nobody can foretell it."""
    return f"{shm_prefix(paths)}{secrets.token_hex(8)}_"


def environments() -> set[str]:
    return {path.name for path in TEMPORARY.glob(ENVIRONMENTS)}


def note_environments(paths: RunPaths, names: set[str]) -> None:
    """Kept where the next start finds it, should this process be killed."""
    paths.triton_socket.with_name(NOTE).write_text(json.dumps(sorted(names)))


def clean(paths: RunPaths) -> int:
    """Removes what a runtime of this run directory left; nothing of it may be running. Returns how many things."""
    note = paths.triton_socket.with_name(NOTE)
    gone = [path for path in SHM.glob(f"{shm_prefix(paths)}*") if _unlinked(path)]
    gone += [
        path for path in (paths.triton_socket, paths.runtime_socket, paths.runtime_control_socket) if _unlinked(path)
    ]
    for name in _noted(note):
        try:
            (TEMPORARY / name).rmdir()
        except OSError:
            continue  # not there, not empty or not ours: not what Triton left
        gone.append(TEMPORARY / name)
    note.unlink(missing_ok=True)
    return len(gone)


def _noted(note: Path) -> list[str]:
    try:
        names = json.loads(note.read_text())
    except (OSError, ValueError):
        return []
    return [name for name in names if isinstance(name, str) and Path(name).match(ENVIRONMENTS) and "/" not in name]


def _unlinked(path: Path) -> bool:
    try:
        path.unlink()
    except OSError:
        return False
    return True
