"""Ed25519 keys in files, and signatures over manifests made with them.

`tie import` signs with the user's own development key unless told otherwise. It is made on first use, readable by its
owner only, and its public half goes onto the list of keys that this user's nodes trust. A deployment signs with a key
of its own (`--sign-with`) and trusts that one.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from tie.bundling.errors import ImportRefused
from tie.catalog.signature import DOMAIN, TRUSTED_KEYS_FILE, load_trusted_keys, user_key_directory

KEY_FILE: Final = "bundle-signing.pem"
_MAX_KEY_FILE_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class SigningKey:
    private: Ed25519PrivateKey
    path: Path
    is_new: bool = False

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def sign(self, manifest: bytes) -> bytes:
        return self.private.sign(DOMAIN + manifest)

    def __repr__(self) -> str:
        return f"SigningKey({self.path.name})"


def load_key(path: Path) -> SigningKey:
    """Refuses a key that others may read: whoever copied it can sign any bundle."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ImportRefused(f"{path.name}: signing key cannot be read: {error.strerror}") from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_KEY_FILE_BYTES:
            raise ImportRefused(f"{path.name}: is not a signing key in PEM")
        if status.st_mode & 0o077:
            raise ImportRefused(f"{path.name}: signing key has mode {status.st_mode & 0o777:04o}, others may read it")
        data = os.read(fd, _MAX_KEY_FILE_BYTES)
    finally:
        os.close(fd)
    try:
        private = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ImportRefused(f"{path.name}: is not an unencrypted signing key in PEM") from None
    if not isinstance(private, Ed25519PrivateKey):
        raise ImportRefused(f"{path.name}: is not an Ed25519 key")
    return SigningKey(private, path)


def create_key(path: Path) -> SigningKey:
    private = Ed25519PrivateKey.generate()
    data = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(data)
    except OSError as error:
        raise ImportRefused(f"{path.name}: signing key cannot be created: {error.strerror}") from error
    return SigningKey(private, path, is_new=True)


def development_key(directory: Path | None = None) -> SigningKey:
    """This user's own key, made and trusted on first use."""
    directory = directory or user_key_directory()
    path = directory / KEY_FILE
    key = load_key(path) if path.exists() else create_key(path)
    _trust(directory / TRUSTED_KEYS_FILE, key.public)
    return key


def _trust(path: Path, public: bytes) -> None:
    try:
        if path.exists() and public in load_trusted_keys(path):
            return
        with path.open("ab+") as file:
            ends_midline = file.tell() > 0 and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n"
            file.write(b"\n" * ends_midline + public.hex().encode("ascii") + b"  # this user's development key\n")
    except OSError as error:
        raise ImportRefused(f"{path.name}: cannot be written: {error.strerror}") from error
