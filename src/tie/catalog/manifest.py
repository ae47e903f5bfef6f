"""`manifest.json`: every other file of a bundle, with its SHA-256 and size. Its own digest is the bundle's identity.

A path is where a hostile bundle would reach out of its directory, so paths are matched against what a bundle may hold
rather than cleaned: relative, normalised, plain characters, in a place that is known.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tie.catalog import description, strict_json, token_bytes
from tie.catalog.errors import BundleRejected

FILE: Final = "manifest.json"
SIGNATURE_FILE: Final = "manifest.sig"
FORMAT: Final = 1
MAX_BYTES: Final = 1024 * 1024
MAX_FILES: Final = 512
MAX_FILE_BYTES: Final = 2**40
MAX_SMALL_FILE_BYTES: Final = 128 * 1024 * 1024  # of a file that is read into memory whole
MAX_ADAPTERS: Final = 64

_PART: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
_WEIGHTS: Final = re.compile(rf"weights/{_PART}\.safetensors")
_ADAPTER: Final = re.compile(rf"adapters/({description.NAME_PATTERN.pattern})/weights\.safetensors")
_TEMPLATE: Final = re.compile(r"templates/([a-z0-9][a-z0-9_-]{0,63})\.jinja")
_PLAIN: Final = re.compile(rf"{_PART}(/{_PART}){{0,7}}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_LATER: Final = ("system_prompts/", "grammars/")


@dataclass(frozen=True, slots=True)
class FileEntry:
    path: str
    sha256: bytes
    size: int


@dataclass(frozen=True, slots=True)
class Manifest:
    files: Mapping[str, FileEntry]
    identity: bytes

    @property
    def weights(self) -> tuple[FileEntry, ...]:
        return tuple(entry for path, entry in sorted(self.files.items()) if _WEIGHTS.fullmatch(path))

    @property
    def adapters(self) -> Mapping[str, FileEntry]:
        """By the adapters' names, in their order."""
        matches = (_ADAPTER.fullmatch(path) for path in sorted(self.files))
        found = {match[1]: self.files[match[0]] for match in matches if match}
        return dict(sorted(found.items()))

    @property
    def template_ids(self) -> tuple[str, ...]:
        matches = (_TEMPLATE.fullmatch(path) for path in sorted(self.files))
        return tuple(match[1] for match in matches if match)

    def entry(self, path: str) -> FileEntry:
        try:
            return self.files[path]
        except KeyError:
            raise BundleRejected(path, "is missing from the manifest") from None


def parse_manifest(data: bytes) -> Manifest:
    if len(data) > MAX_BYTES:
        raise BundleRejected(FILE, f"is {len(data)} bytes, more than {MAX_BYTES}")
    values = strict_json.loads(FILE, data)
    if not isinstance(values, dict) or values.keys() != {"format", "files"}:
        raise BundleRejected(FILE, "does not have exactly format and files")
    if type(values["format"]) is not int or values["format"] != FORMAT:
        raise BundleRejected(FILE, f"is not of format {FORMAT}")
    files = values["files"]
    if not isinstance(files, dict) or not 1 <= len(files) <= MAX_FILES:
        raise BundleRejected(FILE, f"does not list 1..{MAX_FILES} files")
    entries = {path: _entry(path, entry) for path, entry in files.items()}
    _check_paths(entries)
    listed = Manifest(entries, hashlib.sha256(data).digest())
    if len(listed.adapters) > MAX_ADAPTERS:
        raise BundleRejected(FILE, f"lists {len(listed.adapters)} adapters, more than {MAX_ADAPTERS}")
    return listed


def adapter_path(name: str) -> str:
    """Where the adapter of this name lies in a bundle."""
    return f"adapters/{name}/weights.safetensors"


def render_manifest(entries: Iterable[FileEntry]) -> bytes:
    """The bytes that are signed and whose digest is the identity: equal bundles have equal ones."""
    files = {entry.path: {"sha256": entry.sha256.hex(), "size": entry.size} for entry in entries}
    return (json.dumps({"format": FORMAT, "files": files}, sort_keys=True, indent=1) + "\n").encode("ascii")


def _entry(path: str, entry: Any) -> FileEntry:
    if len(path) > 512 or _PLAIN.fullmatch(path) is None or ".." in path.split("/"):
        raise BundleRejected(FILE, f"lists a path of {len(path)} characters that is not plain and relative")
    if not isinstance(entry, dict) or entry.keys() != {"sha256", "size"}:
        raise BundleRejected(FILE, f"entry {path} does not have exactly sha256 and size")
    digest, size = entry["sha256"], entry["size"]
    if not isinstance(digest, str) or _DIGEST.fullmatch(digest) is None:
        raise BundleRejected(FILE, f"entry {path} has a sha256 that is not 64 lower-case hex digits")
    if type(size) is not int or not 0 <= size <= MAX_FILE_BYTES:
        raise BundleRejected(FILE, f"entry {path} has a size outside 0..{MAX_FILE_BYTES}")
    return FileEntry(path, bytes.fromhex(digest), size)


def _check_paths(entries: Mapping[str, FileEntry]) -> None:
    tokenizers = set(description.TOKENIZER_FILES.values())
    for path, entry in entries.items():
        if _WEIGHTS.fullmatch(path) or _ADAPTER.fullmatch(path):
            continue
        if path.startswith(_LATER):
            raise BundleRejected(path, "is of a kind that this version does not implement")
        if path not in {description.FILE, token_bytes.FILE, *tokenizers} and _TEMPLATE.fullmatch(path) is None:
            raise BundleRejected(path, "is not a file that a bundle holds")
        if entry.size > MAX_SMALL_FILE_BYTES:
            raise BundleRejected(path, f"is listed with {entry.size} bytes, more than {MAX_SMALL_FILE_BYTES}")
