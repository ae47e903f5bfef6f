"""`tie up`, `tie status`, `tie metrics`, `tie down`: a whole node on this machine, without systemd or privileges.

Each command imports what it needs when it runs.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, ParamSpec

import typer

from tie.clients.cloudboard import default_run_dir
from tie.contracts.errors import TieError
from tie.contracts.paths import RunPaths

EXIT_FAILED: Final = 1
EXIT_NOT_READY: Final = 3
CONTROL_TIMEOUT_S: Final = 5.0

P = ParamSpec("P")
RunDir = Annotated[
    Path | None,
    typer.Option(
        "--run-dir",
        help="Sockets, settings, logs of the node. Default: $TIE_RUN_DIR, $XDG_RUNTIME_DIR/tie, /tmp/tie-UID.",
    ),
]


def register(app: typer.Typer) -> None:
    """Adds the commands to `tie`."""
    for command in (up, status, metrics, down):
        app.command()(_reporting(command))


def up(
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when the node is ready, and leave it running.")
    ] = False,
    run_dir: RunDir = None,
    bundle: Annotated[
        Path | None,
        typer.Option("--bundle", help="Model bundle to serve. Default: $TIE_BUNDLE, build/bundles/smollm2."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Settings of any process, as TOML; RUN/node.toml shows them all.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of the engine. Default: every core.")] = None,
    listen: Annotated[str | None, typer.Option(help="HOST:PORT or unix:/PATH. Default: 127.0.0.1:0, any port.")] = None,
    allow_unsigned_bundle: Annotated[
        bool, typer.Option("--allow-unsigned-bundle", help="For development: serve a bundle that nobody signed.")
    ] = False,
) -> None:
    """Start a node, show it while it runs, stop it on Ctrl-C. Exit code 1, with the reason, when it does not start."""
    from rich.console import Console

    from tie.node import running
    from tie.node.settings import UpOptions

    options = UpOptions(_paths(run_dir).root, bundle, config, threads, listen, allow_unsigned_bundle)
    if detach:
        running.start_and_leave(options, Console())
    else:
        running.run_in_foreground(options, Console())


def status(
    run_dir: RunDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Say how a node does: processes, restarts, address, model, load. Exit code 3 unless it is ready."""
    from rich.console import Console

    from tie.node import board
    from tie.node.status import NodeCondition, look

    seen = look(_paths(run_dir))
    if as_json:
        typer.echo(json.dumps(dataclasses.asdict(seen)))
    else:
        Console().print(board.render(seen))
    if seen.condition is not NodeCondition.READY:
        raise typer.Exit(EXIT_NOT_READY)


def metrics(
    run_dir: RunDir = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """What the runtime has done since it started, in numbers: docs/metrics.md says what each means."""
    from rich.console import Console

    from tie.clients.runtime_control import RuntimeControl
    from tie.node.metrics import numbers, render

    with RuntimeControl.connect(_paths(run_dir).runtime_control_socket, CONTROL_TIMEOUT_S) as control:
        found = control.status().metrics
    if as_json:
        typer.echo(json.dumps(numbers(found)))
    else:
        Console().print(render(found))


def down(run_dir: RunDir = None) -> None:
    """Stop a node, verify that none of its processes is left, remove its sockets. Its logs stay."""
    from tie.node import rundir, stopping

    paths = _paths(run_dir)
    if not paths.root.is_dir():
        typer.echo(f"no node runs in {paths.root}")
        return
    rundir.check_ours(paths.root)
    with rundir.lock(paths):
        stopped = stopping.stop(paths)
    if not stopped.was_running:
        typer.echo(f"no node runs in {paths.root}")
        return
    forced = f", by force: {', '.join(stopped.forced)}" if stopped.forced else ""
    typer.echo(f"node stopped in {stopped.elapsed_s:.1f} s{forced}; logs: {stopped.logs}")


def _reporting(command: Callable[P, None]) -> Callable[P, None]:
    """The edge of the process: what we raise on purpose is a line for people and an exit code."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            command(*args, **kwargs)
        except TieError as error:
            typer.echo(f"tie: {error}", err=True)
            raise typer.Exit(EXIT_FAILED) from error

    return run


def _paths(run_dir: Path | None) -> RunPaths:
    return RunPaths((run_dir or default_run_dir(os.environ)).absolute())
