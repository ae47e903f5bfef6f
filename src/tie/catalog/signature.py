"""Who vouches for a bundle: an Ed25519 signature over its manifest, and the list of keys that this machine trusts.

Making signatures and keys is `bundling.signing`'s; nothing here writes.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tie.catalog.errors import BundleRejected, CatalogError
from tie.catalog.manifest import SIGNATURE_FILE

# Signed before the manifest's bytes, so that no signature made for another purpose fits here.
DOMAIN: Final = b"tie/bundle-manifest/v1\x00"
SIGNATURE_BYTES: Final = 64
KEY_BYTES: Final = 32
MAX_TRUSTED_KEYS: Final = 64
TRUSTED_KEYS_FILE: Final = "trusted-bundle-keys"
_MAX_TRUSTED_FILE_BYTES: Final = 64 * 1024
_KEY_LINE: Final = re.compile(r"[0-9a-fA-F]{64}")


def user_key_directory() -> Path:
    """Where this user's own signing key and trusted keys are."""
    configured = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    base = configured if configured.is_absolute() else Path.home() / ".config"
    return base / "tie"


def default_trusted_keys_path() -> Path:
    return user_key_directory() / TRUSTED_KEYS_FILE


def load_trusted_keys(path: str | os.PathLike[str]) -> tuple[bytes, ...]:
    """One key a line in hex, `#` begins a comment; a file that is not there is an error, not an empty list."""
    name = Path(path).name
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MAX_TRUSTED_FILE_BYTES + 1)
    except OSError as error:
        raise CatalogError(f"{name}: cannot be read: {error.strerror}") from error
    if len(data) > _MAX_TRUSTED_FILE_BYTES:
        raise CatalogError(f"{name}: is longer than {_MAX_TRUSTED_FILE_BYTES} bytes")
    keys: dict[bytes, None] = {}
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text and _KEY_LINE.fullmatch(text) is None:
            raise CatalogError(f"{name}: line {number} is not a key of 64 hex digits")
        if text:
            keys[bytes.fromhex(text)] = None
    if len(keys) > MAX_TRUSTED_KEYS:
        raise CatalogError(f"{name}: lists {len(keys)} keys, more than {MAX_TRUSTED_KEYS}")
    return tuple(keys)


def verify(manifest: bytes, signature: bytes, trusted_keys: Sequence[bytes]) -> bytes:
    """The trusted key that made `signature`; refuses when none did."""
    if len(signature) != SIGNATURE_BYTES:
        raise BundleRejected(SIGNATURE_FILE, f"is {len(signature)} bytes, not {SIGNATURE_BYTES}")
    if not trusted_keys:
        raise BundleRejected(SIGNATURE_FILE, "cannot be verified: no key is trusted")
    # Imported here: an unsigned development bundle, and whoever imports this for its constants, does without.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    for key in trusted_keys:
        try:
            Ed25519PublicKey.from_public_bytes(key).verify(signature, DOMAIN + manifest)
        except InvalidSignature:
            continue
        return key
    raise BundleRejected(SIGNATURE_FILE, f"was made by none of the {len(trusted_keys)} trusted keys")
