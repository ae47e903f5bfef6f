"""Which processes make a node, in the order they start, and how supervisord is told of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tie.contracts.paths import RunPaths
from tie.node import leash, rundir

ENVIRONMENT_MARK: Final = "TIE_NODE_RUN_DIR"
"""Set in every process that the launcher starts, so that what is left of a dead node can be found."""
HERALD: Final = "herald"
_KEPT_VARIABLES: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "LD_LIBRARY_PATH")
_LOG_BYTES: Final = "8MB"
_LOG_BACKUPS: Final = 1


@dataclass(frozen=True, slots=True)
class Program:
    """One process that supervisord keeps alive. `stop_wait_s` bounds its own orderly end."""

    name: str
    module: str
    stop_wait_s: int


NODE_PROGRAMS: Final = (
    Program("key_protection", "tie.cloudboard.key_protection", 5),
    Program("afm_runtime", "tie.afm_runtime", 15),
    Program("acceptor", "tie.node.acceptor", 5),
    Program("cloudboardd", "tie.cloudboard", 40),
    Program("lease", "tie.node.lease", 5),
)
"""Stopped in the opposite order: admission ends first, the runtime after the last request."""


def child_environment(environment: Mapping[str, str], run_dir: Path) -> dict[str, str]:
    """All that a process of the node inherits: no secret of the user's shell, no proxy."""
    kept = {name: environment[name] for name in _KEPT_VARIABLES if name in environment}
    return {**kept, ENVIRONMENT_MARK: str(run_dir)}


def leashed(command: list[str]) -> list[str]:
    """`command`, to be ended with the process that starts it."""
    return [sys.executable, "-I", "-S", leash.__file__, *command]


def python_command(module: str, *arguments: str) -> list[str]:
    """A fresh interpreter that takes no module from the working directory or the user's site-packages."""
    return [sys.executable, "-P", "-s", "-m", module, *arguments]


def supervisord_config(paths: RunPaths, programs: tuple[Program, ...] = NODE_PROGRAMS) -> str:
    """supervisord.conf for this run directory; everything it writes is below it."""
    sections = [_supervisord_section(paths), _herald_section(paths)]
    sections += [_program_section(program, paths, 10 * place) for place, program in enumerate(programs, 1)]
    return "\n\n".join(sections) + "\n"


def _supervisord_section(paths: RunPaths) -> str:
    return "\n".join(
        (
            "[supervisord]",
            "nodaemon=true",
            "silent=true",
            "umask=077",
            f"directory={_escaped(paths.root)}",
            f"logfile={_escaped(paths.logs / 'supervisord.log')}",
            "logfile_maxbytes=1MB",
            "logfile_backups=1",
            f"pidfile={_escaped(paths.root / 'supervisord.pid')}",
            f"childlogdir={_escaped(paths.logs)}",
            "nocleanup=true",
            "",
            "[unix_http_server]",
            f"file={_escaped(rundir.supervisor_socket(paths))}",
            "chmod=0600",
            "",
            "[rpcinterface:supervisor]",
            "supervisor.rpcinterface_factory = supervisor.rpcinterface:make_main_rpcinterface",
        )
    )


def _program_section(program: Program, paths: RunPaths, priority: int) -> str:
    command = leashed(python_command(program.module, "--config", str(paths.config)))
    return "\n".join(
        (
            f"[program:{program.name}]",
            f"command={_command_line(command)}",
            f"priority={priority}",
            "autostart=true",
            "autorestart=true",
            # Ended within a second of its start: tried again after 1 s, 2 s, 3 s and so on.
            "startsecs=1",
            "startretries=1000",
            "stopsignal=TERM",
            f"stopwaitsecs={program.stop_wait_s}",
            # Only the program itself is asked to stop: it drains, and ends its own children when they are done.
            "killasgroup=true",
            "stdout_logfile=NONE",
            *_stderr_lines(paths.logs / f"{program.name}.jsonl"),
        )
    )


def _herald_section(paths: RunPaths) -> str:
    command = leashed(python_command("tie.node.herald", "--run-dir", str(paths.root)))
    return "\n".join(
        (
            f"[eventlistener:{HERALD}]",
            f"command={_command_line(command)}",
            "events=PROCESS_STATE",
            "buffer_size=256",
            "priority=1",
            "autorestart=true",
            "startsecs=0",  # it is given events from its first moment
            "stopwaitsecs=5",
            "stdout_logfile=NONE",
            *_stderr_lines(paths.logs / "supervisor.jsonl"),
        )
    )


def _stderr_lines(path: Path) -> tuple[str, ...]:
    return (
        f"stderr_logfile={_escaped(path)}",
        f"stderr_logfile_maxbytes={_LOG_BYTES}",
        f"stderr_logfile_backups={_LOG_BACKUPS}",
    )


def _command_line(command: list[str]) -> str:
    """As supervisord reads it: shlex words, in which its own %(…)s expressions and INI comments must not begin."""
    return " ".join("'" + _escaped(word).replace("'", "'\"'\"'") + "'" for word in command)


def _escaped(word: str | Path) -> str:
    return str(word).replace("%", "%%")
