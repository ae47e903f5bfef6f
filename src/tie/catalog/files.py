"""Opens the files of a directory without leaving it, and believes their bytes only as far as their digest agrees.

Every path is walked from the directory's own fd, one component at a time and through no symlink, and opened once: what
was verified is what the caller reads and maps. A file that someone may still write to can change afterwards all the
same; `verify_into_memory` makes a sealed copy for whoever cannot rule that out.
"""

import fcntl
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tie.catalog.errors import BundleRejected
from tie.catalog.manifest import FileEntry

_CHUNK_BYTES: Final = 1 << 20
_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_PLAIN: Final = re.compile(r"[A-Za-z0-9._/-]{1,256}")


def open_directory(path: str | os.PathLike[str]) -> int:
    """The bundle's own directory may be a symlink ("current"): whoever starts us chose it. Nothing below it may."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise BundleRejected(Path(path).name or "bundle", _fault(error)) from error


def open_file(directory: int, path: str) -> int:
    """A regular file below `directory`; the caller owns the fd."""
    *parents, name = path.split("/")
    try:
        with _walk(directory, parents) as parent:
            # Non-blocking, so that a pipe in a file's place is refused below instead of waited for.
            fd = os.open(name, _FLAGS | os.O_NONBLOCK, dir_fd=parent)
    except OSError as error:
        raise BundleRejected(path, _fault(error)) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise BundleRejected(path, "is not a regular file")
    return fd


def read_bounded(fd: int, path: str, most: int) -> bytes:
    """A whole file whose digest is not known beforehand (the manifest and its signature)."""
    size = os.fstat(fd).st_size
    if size > most:
        raise BundleRejected(path, f"is {size} bytes, more than {most}")
    data = b"".join(_chunks(fd, size))
    if len(data) != size:
        raise BundleRejected(path, f"became shorter while it was read: {len(data)} of {size} bytes")
    return data


def read_verified(fd: int, entry: FileEntry) -> bytes:
    _check_size(fd, entry)
    data = b"".join(_chunks(fd, entry.size))
    _check_digest(hashlib.sha256(data).digest(), len(data), entry)
    return data


def verify(fd: int, entry: FileEntry) -> None:
    _check_size(fd, entry)
    digest, length = hashlib.sha256(), 0
    for chunk in _chunks(fd, entry.size):
        digest.update(chunk)
        length += len(chunk)
    _check_digest(digest.digest(), length, entry)


def verify_into_memory(fd: int, entry: FileEntry) -> int:
    """A sealed memfd that holds exactly the bytes whose digest was checked; the caller owns it."""
    _check_size(fd, entry)
    copy = os.memfd_create("tie-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        digest, length = hashlib.sha256(), 0
        for chunk in _chunks(fd, entry.size):
            digest.update(chunk)
            length += len(chunk)
            while chunk:
                chunk = chunk[os.write(copy, chunk) :]
        _check_digest(digest.digest(), length, entry)
        fcntl.fcntl(copy, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(copy)
        raise
    return copy


def check_no_others(directory: int, expected: frozenset[str]) -> None:
    """Refuses any file, symlink or directory that is not one of `expected` or on the way to one."""
    parents = {path[:index] for path in expected for index, char in enumerate(path) if char == "/"}
    for parent in sorted({"", *parents}):
        for name in _listed(directory, parent):
            path = f"{parent}/{name}" if parent else name
            if path not in expected and path not in parents:
                raise BundleRejected(_shown(path), "is not listed in the manifest")


def _listed(directory: int, parent: str) -> Iterator[str]:
    try:
        with _walk(directory, parent.split("/") if parent else []) as fd, os.scandir(fd) as entries:
            for entry in entries:
                yield entry.name
    except OSError as error:
        raise BundleRejected(parent or "bundle", _fault(error)) from error


@contextmanager
def _walk(directory: int, parents: list[str]) -> Iterator[int]:
    fd = os.dup(directory)
    try:
        for name in parents:
            inner = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        yield fd
    finally:
        os.close(fd)


def _chunks(fd: int, size: int) -> Iterator[bytes]:
    """At most `size` bytes from the beginning; the fd's position is neither used nor moved."""
    position = 0
    while position < size:
        chunk = os.pread(fd, min(_CHUNK_BYTES, size - position), position)
        if not chunk:
            return
        yield chunk
        position += len(chunk)


def _check_size(fd: int, entry: FileEntry) -> None:
    size = os.fstat(fd).st_size
    if size != entry.size:
        raise BundleRejected(entry.path, f"is {size} bytes, the manifest says {entry.size}")


def _check_digest(digest: bytes, length: int, entry: FileEntry) -> None:
    if length != entry.size:
        raise BundleRejected(entry.path, f"became shorter while it was read: {length} of {entry.size} bytes")
    if digest != entry.sha256:
        raise BundleRejected(entry.path, "does not have the SHA-256 that the manifest says")


def _fault(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "is missing"
    return f"cannot be opened: {error.strerror}"


def _shown(path: str) -> str:
    return path if _PLAIN.fullmatch(path) else f"a file with a name of {len(path)} characters"
