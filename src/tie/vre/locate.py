"""Which node to talk to, and whether its development attestation is acceptable without being asked.

It is for a node of our own: one whose run directory belongs to this user and to nobody else. There, whoever could lie
about the key could read this process's memory as well.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tie.clients.cloudboard import default_run_dir, read_address
from tie.contracts.errors import NotReady
from tie.vre.errors import NodeUnreachable

ALLOW_VARIABLE = "TIE_VRE_ALLOW_DEVELOPMENT_ATTESTATION"


@dataclass(frozen=True, slots=True)
class Target:
    """A node's address. `is_own` where it was found through a run directory of ours."""

    address: str
    is_own: bool
    allow_development: bool


def locate(
    run_dir: Path | None,
    node: str | None,
    environment: Mapping[str, str],
    *,
    allow_development: bool = False,
) -> Target:
    """The node at `node`, or of `run_dir`, or of the default run directory. Raises NodeUnreachable."""
    is_allowed = allow_development or environment.get(ALLOW_VARIABLE) == "1"
    if node is not None:
        return Target(node, is_own=False, allow_development=is_allowed)
    directory = run_dir or default_run_dir(environment)
    try:
        address = read_address(directory)
    except NotReady as error:
        raise NodeUnreachable(f"{error}; `tie up` starts one") from error
    is_own = belongs_to_us(directory)
    return Target(address, is_own, is_allowed or is_own)


def belongs_to_us(directory: Path) -> bool:
    """Whether only this user can have written what is in the directory."""
    try:
        found = directory.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
