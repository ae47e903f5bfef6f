"""Puts a bundle together beside its destination and moves it there in one step: a bundle is whole or not there."""

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tie.bundling.errors import ImportRefused
from tie.bundling.signing import SigningKey
from tie.bundling.token_bytes import make_token_bytes
from tie.bundling.toml import render_description
from tie.bundling.weights_file import MAX_FILE_BYTES, PlannedTensor, Progress, split, write_weights
from tie.catalog import description, manifest, token_bytes
from tie.catalog.description import BundleDescription, parse_description
from tie.catalog.manifest import FileEntry, parse_manifest, render_manifest

_CHUNK_BYTES: Final = 1 << 20
_NO_ADAPTERS: Final[Mapping[str, Sequence[PlannedTensor]]] = {}


def write_bundle(
    destination: Path,
    described: BundleDescription,
    *,
    tokenizer: bytes,
    templates: Mapping[str, str],
    tensors: Sequence[PlannedTensor],
    adapters: Mapping[str, Sequence[PlannedTensor]] = _NO_ADAPTERS,
    key: SigningKey | None,
    force: bool = False,
    progress: Progress = lambda count: None,
    weights_file_bytes: int = MAX_FILE_BYTES,
) -> bytes:
    """The identity of the bundle that now is at `destination`; unsigned where `key` is None."""
    rendered = render_description(described)
    parse_description(rendered)  # what no reader would take is not written
    with _staged(destination, force) as staging:
        _add(staging, description.FILE, rendered)
        _add(staging, described.tokenizer.file, tokenizer)
        _add(staging, token_bytes.FILE, make_token_bytes(described, tokenizer))
        for template_id, text in templates.items():
            _add(staging, f"templates/{template_id}.jinja", text.encode("utf-8"))
        (staging / "weights").mkdir()
        for number, part in enumerate(split(tensors, weights_file_bytes), 1):
            write_weights(staging / "weights" / f"{number:05}.safetensors", part, progress)
        for name, planned in adapters.items():
            path = staging / manifest.adapter_path(name)
            path.parent.mkdir(parents=True)
            write_weights(path, planned, progress)
        listed = render_manifest(_entries(staging))
        _add(staging, manifest.FILE, listed)
        if key is not None:
            _add(staging, manifest.SIGNATURE_FILE, key.sign(listed))
        return parse_manifest(listed).identity


def check_destination(destination: Path, force: bool) -> None:
    """Refuses to write over anything but an empty directory or, when forced, a bundle."""
    if not os.path.lexists(destination):
        return
    if destination.is_symlink() or not destination.is_dir():
        raise ImportRefused(f"{destination.name}: exists and is not a directory")
    names = {entry.name for entry in destination.iterdir()}
    if names and not {manifest.FILE, description.FILE} <= names:
        raise ImportRefused(f"{destination.name}: is a directory that holds something other than a bundle")
    if names and not force:
        raise ImportRefused(f"{destination.name}: holds a bundle already; --force replaces it")


@contextmanager
def _staged(destination: Path, force: bool) -> Iterator[Path]:
    """A directory beside the destination, on the same file system; it takes the place, or goes."""
    destination = destination.absolute()
    check_destination(destination, force)
    suffix = secrets.token_hex(4)
    staging = destination.with_name(f".{destination.name}.importing-{suffix}")
    try:
        staging.mkdir(parents=True)
        yield staging
        check_destination(destination, force)  # again: an import takes long enough for someone else to write there
        _replace(staging, destination, destination.with_name(f".{destination.name}.replaced-{suffix}"))
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _replace(staging: Path, destination: Path, aside: Path) -> None:
    replaced = destination.exists()
    if replaced:
        destination.rename(aside)
    try:
        staging.rename(destination)
    except OSError:
        if replaced:
            aside.rename(destination)
        raise
    if replaced:
        shutil.rmtree(aside)


def _add(directory: Path, path: str, data: bytes) -> None:
    target = directory / path
    target.parent.mkdir(exist_ok=True)
    with target.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _entries(directory: Path) -> Iterator[FileEntry]:
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK_BYTES):
                    digest.update(chunk)
            yield FileEntry(path.relative_to(directory).as_posix(), digest.digest(), path.stat().st_size)
