"""What `tie-vre` exits with. The table is printed by --help and holds for every command."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Exit(IntEnum):
    OK = 0
    NODE_ERROR = 1
    USAGE = 2
    UNREACHABLE = 3
    TRUNCATED = 4
    ATTESTATION_REFUSED = 5
    CANCELLED = 130


MEANINGS: Final = {
    Exit.OK: "the answer is whole",
    Exit.NODE_ERROR: "the node answered with an error, or refused the request",
    Exit.USAGE: "the command was used wrongly",
    Exit.UNREACHABLE: "no node answers, or it takes no requests now",
    Exit.TRUNCATED: "the answer was cut: what was printed may be a part",
    Exit.ATTESTATION_REFUSED: "the node's attestation was refused; nothing was sent",
    Exit.CANCELLED: "cancelled with Ctrl-C",
}


def table() -> str:
    """For --help: one paragraph."""
    return "Exit codes: " + "; ".join(f"{code.value} {meaning}" for code, meaning in MEANINGS.items()) + "."
