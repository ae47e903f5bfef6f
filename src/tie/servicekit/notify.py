"""Tells the service manager that this process is ready or stopping (systemd's sd_notify datagram)."""

from __future__ import annotations

import os
import socket


def notify(*assignments: str) -> bool:
    """Sends assignments such as "READY=1"; False when no manager asked. Raises OSError when it does not listen."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        channel.sendto("\n".join(assignments).encode(), address)
    return True
