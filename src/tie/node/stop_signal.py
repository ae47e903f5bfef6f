"""SIGTERM and SIGINT as something that a select loop can wait for."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_signal() -> Iterator[socket.socket]:
    """A socket that becomes readable when this process is asked to stop. Main thread only."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    handlers = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    previous = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    try:
        with reader, writer:
            yield reader
    finally:
        signal.set_wakeup_fd(previous)
        for number, handler in handlers.items():
            signal.signal(number, handler)
