"""Talks to a node's supervisord over its Unix socket; every call has a deadline."""

from __future__ import annotations

import http.client
import socket
import xmlrpc.client
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tie.contracts.errors import DeadlinePassed, NotReady, PeerError

CALL_DEADLINE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process as supervisord sees it. `pid` is 0 where none runs."""

    name: str
    state: str
    pid: int
    uptime_s: int


def process_states(socket_path: Path) -> list[ProcessState]:
    """Every process that supervisord keeps. Raises NotReady, DeadlinePassed or PeerError."""
    answer = _call(socket_path, "supervisor.getAllProcessInfo")
    if not isinstance(answer, list):
        raise PeerError("supervisord answered something else than a list of processes")
    return [_state(entry) for entry in answer]


def request_shutdown(socket_path: Path) -> None:
    """Asks supervisord to stop every process, last started first, and to end. Returns at once."""
    _call(socket_path, "supervisor.shutdown")


def _state(entry: Any) -> ProcessState:
    try:
        pid = int(entry["pid"])
        uptime = int(entry["now"]) - int(entry["start"]) if pid else 0
        return ProcessState(str(entry["name"]), str(entry["statename"]).lower(), pid, max(uptime, 0))
    except (TypeError, KeyError, ValueError) as error:
        raise PeerError("supervisord described a process without pid, state or start") from error


def _call(socket_path: Path, method: str) -> Any:
    connection = _UnixConnection(socket_path)
    try:
        body = xmlrpc.client.dumps((), method)
        connection.request("POST", "/RPC2", body, {"Content-Type": "text/xml"})
        response = connection.getresponse()
        payload = response.read()
        if response.status != http.client.OK:
            raise PeerError(f"supervisord answered {method} with HTTP status {response.status}")
        (answer,), _ = xmlrpc.client.loads(payload.decode("utf-8", "replace"))
    except TimeoutError as error:
        raise DeadlinePassed(f"supervisord did not answer {method} within {CALL_DEADLINE_S:g} s") from error
    except (OSError, http.client.HTTPException) as error:
        raise NotReady(f"supervisord does not answer on {socket_path}") from error
    except xmlrpc.client.Fault as error:
        raise PeerError(f"supervisord refused {method}: fault {error.faultCode}") from error
    finally:
        connection.close()
    return answer


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=CALL_DEADLINE_S)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(CALL_DEADLINE_S)
        self.sock.connect(self._path)
