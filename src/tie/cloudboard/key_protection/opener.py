"""The process whose children open one enc each and die: `python -m tie.cloudboard.key_protection.opener --fd N`.

It imports the cryptography once, holds no key, reads no request and has one thread. Each socket that arrives by
SCM_RIGHTS goes to a forked child, which waits there for its one job, and alone reads the private key, answers and
leaves. What a child did with a key cannot be found in any process that lives on.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from typing import Final

from tie.cloudboard.key_protection import sealed_secret
from tie.envelope.refusal import EnvelopeRefused
from tie.envelope.suites import TAG_BYTES, X25519_SHA256_AES128GCM
from tie.servicekit import hygiene

_KEM: Final = X25519_SHA256_AES128GCM.kem
JOB_BYTES: Final = 1 + _KEM.private_key_bytes + _KEM.enc_bytes + sealed_secret.BINDING_SUITE.kem.public_key_bytes
"""Key number, private key, enc, binding key."""
REPLY_BYTES: Final = sealed_secret.BINDING_SUITE.kem.enc_bytes + _KEM.secret_bytes + TAG_BYTES
OPENED: Final = b"\x01"
REFUSED: Final = b"\x00"
CHILD_LIMIT_S: Final = 2


def main(arguments: list[str]) -> None:
    hygiene.harden()
    hygiene.die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the children
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is for the parent to act on
    gc.collect()
    gc.freeze()  # so that a child's collector does not copy every page of ours
    with socket.socket(fileno=int(arguments[arguments.index("--fd") + 1])) as control:
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            if os.fork() == 0:
                control.close()
                _serve_and_leave(descriptors[0])
            os.close(descriptors[0])


def _serve_and_leave(descriptor: int) -> None:
    """Never returns: a child must not fall back into its parent's loop."""
    status = 1
    try:
        _rehearse()
        with socket.socket(fileno=descriptor) as connection:
            if job := connection.recv(JOB_BYTES):  # nothing, if key protection ended before it had a job for us
                signal.setitimer(signal.ITIMER_REAL, CHILD_LIMIT_S)
                connection.sendall(open_job(job))
        status = 0
    finally:
        os._exit(status)


def _rehearse() -> None:
    """One opening with keys made for it, so that the pages that a fork shares are copied before there is a job."""
    private, public = _KEM.generate()
    open_job(b"\0" + private + _KEM.encapsulate(public)[1] + public)


def open_job(job: bytes) -> bytes:
    """OPENED and the sealed secret, or REFUSED for an enc that cannot be opened."""
    assert len(job) == JOB_BYTES, "key protection sends whole jobs, one a packet"
    key_number, rest = job[0], job[1:]
    private, rest = rest[: _KEM.private_key_bytes], rest[_KEM.private_key_bytes :]
    enc, binding_key = rest[: _KEM.enc_bytes], rest[_KEM.enc_bytes :]
    try:
        reply_enc, sealed = sealed_secret.seal(binding_key, key_number, enc, _KEM.decapsulate(private, enc))
    except EnvelopeRefused:
        return REFUSED
    return OPENED + reply_enc + sealed


if __name__ == "__main__":
    main(sys.argv)
