"""What decides the meaning of a KV block, as one digest: narrower than a bundle's identity.

Two bundles may differ in name, release, templates or prompts and still read each other's blocks. A request has one
adapter or none, and its blocks know no other, so one more in a bundle voids nobody's cache.
"""

import hashlib
import json
from typing import Final

from tie.catalog.description import BundleDescription
from tie.catalog.manifest import Manifest

_DOMAIN: Final = b"tie/kv-identity/v1\x00"


def kv_identity(listed: Manifest, described: BundleDescription, adapter: str | None = None) -> bytes:
    """SHA-256 over weights, layout, architecture, tokenizer and the adapter's weights (not its name)."""
    values = {
        "weights": {entry.path: entry.sha256.hex() for entry in listed.weights},
        "model": described.model.to_table(),
        "tokenizer": listed.entry(described.tokenizer.file).sha256.hex(),
        "adapter": None if adapter is None else listed.adapters[adapter].sha256.hex(),
    }
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(_DOMAIN + text.encode("ascii")).digest()
