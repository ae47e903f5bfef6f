"""`make demo`: starts a node in a fresh directory, asks it a question, says what happened, and stops all of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from tie.contracts.errors import PeerError, TieError
from tie.contracts.paths import RunPaths
from tie.node import account, board, processes, rundir, starting, stopping
from tie.node.settings import UpOptions

QUESTION: Final = "What is the capital of Germany?"
"""One that the small model answers by a wide margin, so that rounding, and so the processor, does not decide."""
ASK_BOUND_S: Final = 120.0
_SHM: Final = Path("/dev/shm")  # noqa: S108 - looked at, never written


def main() -> int:
    console = Console(highlight=False)
    # Short, because the kernel bounds a socket's path, and made by mkdtemp: ours alone.
    root = Path(tempfile.mkdtemp(prefix="tie-demo-", dir="/tmp"))
    try:
        run(RunPaths(root), console)
    except TieError as error:
        console.print(f"demo failed: {error}", style="bold red", markup=False)
        return 1
    finally:
        stopping.stop(RunPaths(root))
        shutil.rmtree(root)
    return 0


def run(paths: RunPaths, console: Console) -> None:
    """The whole show. Raises TieError when any of it is not as it should be."""
    shm_before = _shared_memory()
    began = time.monotonic()
    console.rule("a node, unprivileged, in a directory of its own", align="left")
    with console.status("starting key protection, runtime, acceptor, cloudboardd") as spinner:
        started = starting.launch(UpOptions(paths.root), os.environ, is_detached=True)
        seen = starting.wait_ready(started, on_look=lambda look: spinner.update(board.headline(look)))
    console.print(board.render(seen, with_hint=False))
    console.print(f"ready after {time.monotonic() - began:.1f} s\n")
    console.rule(f"tie-vre ask {QUESTION!r}", align="left")
    _ask(paths, console)
    console.rule("what happened", align="left")
    _tell(paths, console)
    console.rule("and stops", align="left")
    _stop(paths, console, started, shm_before)


def _ask(paths: RunPaths, console: Console) -> None:
    command = [sys.executable, "-m", "tie.vre.cli", "--run-dir", str(paths.root), "ask", QUESTION]
    began = time.monotonic()
    try:
        code = subprocess.run(command, timeout=ASK_BOUND_S, check=False).returncode
    except subprocess.TimeoutExpired as error:
        raise PeerError(f"no answer came within {ASK_BOUND_S:g} s") from error
    if code:
        raise PeerError(f"tie-vre ended with exit code {code}")
    console.print(f"answered in {time.monotonic() - began:.1f} s, client's start included\n", style="dim")


def _tell(paths: RunPaths, console: Console) -> None:
    parts = account.of_last_request(paths)
    left = account.await_ends(parts)
    if missing := account.PER_REQUEST - {part.process for part in parts}:
        raise PeerError(f"the logs hold no summary of {', '.join(sorted(missing))}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for heading in ("process", "pid", "what it did", "how long", "now"):
        table.add_column(heading)
    for part in parts:
        stages = "\n".join(f"{label} {ms:.1f} ms" for label, ms in part.stages)
        now = "running" if processes.read(part.pid) else "gone"
        table.add_row(part.process, str(part.pid), part.duty, stages, now)
    console.print(table)
    if left:
        raise PeerError(f"still running after its request: {', '.join(part.process for part in left)}")
    tokens = max(parts, key=lambda part: part.completion_tokens)
    console.print(
        f"{tokens.prompt_tokens} tokens of prompt, {tokens.completion_tokens} of answer; "
        "the two processes that saw the request in clear ended with it\n"
    )


def _stop(paths: RunPaths, console: Console, started: starting.Started, shm_before: frozenset[str]) -> None:
    stopped = stopping.stop(paths)
    started.supervisor.wait(timeout=5)
    if stopped.forced:
        raise PeerError(f"did not stop by themselves: {', '.join(stopped.forced)}")
    left = [str(path) for path in rundir.sockets_left(paths)] + sorted(_shared_memory() - shm_before)
    if left or processes.of_node(paths):
        raise PeerError(f"left behind: {', '.join(left) or 'processes'}")
    console.print(f"stopped in {stopped.elapsed_s:.1f} s: no process, no socket and no shared memory of it is left")


def _shared_memory() -> frozenset[str]:
    return frozenset(path.name for path in _SHM.iterdir() if "triton" in path.name or "tie" in path.name)


if __name__ == "__main__":
    sys.exit(main())
