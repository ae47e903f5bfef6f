"""Who is on the other end of a Unix socket, as the kernel says."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Collection
from dataclasses import dataclass

from tie.contracts.errors import NotAdmitted

UNMAPPED_UID = 65534
"""What a uid outside the user namespace looks like; admitting it would admit everyone unknown."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Kernel-attested identity of a connected process, as of its connect() or listen()."""

    pid: int
    uid: int
    gid: int


def credentials(connection: socket.socket) -> Peer:
    """SO_PEERCRED of a connected Unix socket. Raises OSError on any other socket."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return Peer(*struct.unpack("3i", raw))


def admit(connection: socket.socket, extra_uids: Collection[int] = ()) -> Peer:
    """The peer, if it is our own uid or one of `extra_uids`. Raises NotAdmitted otherwise; uid 65534 never passes."""
    peer = credentials(connection)
    allowed = {os.geteuid(), *extra_uids} - {UNMAPPED_UID}
    if peer.uid not in allowed:
        raise NotAdmitted(f"peer uid {peer.uid} is not admitted on this socket")
    return peer
