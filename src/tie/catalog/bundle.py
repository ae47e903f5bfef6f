"""A model bundle, opened: verified first, used afterwards.

`open_bundle` is for whoever maps weights: it verifies every file. `open_assets` is for processes that live for one
request and need the tokenizer and a template: it verifies the signature and exactly the files that are read, and leaves
the weights alone. Both hold the directory and its files by fd until closed, so that nothing is opened by name twice.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from tie.catalog import adapters, description, files, layout, manifest, signature, token_bytes
from tie.catalog.description import BundleDescription
from tie.catalog.errors import BundleRejected
from tie.catalog.kv_identity import kv_identity
from tie.catalog.layout import Form
from tie.catalog.manifest import FileEntry, Manifest
from tie.catalog.safetensors_header import Tensor, read_header
from tie.catalog.token_bytes import TokenBytes


@dataclass(frozen=True, slots=True)
class WeightFile:
    path: str
    fd: int
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class AdapterFile:
    path: str
    fd: int
    ranks: Mapping[str, int]
    """Of each matrix that it bends, by stem; whole blocks."""
    size_bytes: int


class Assets:
    """What a bundle says of itself, and its small files. Close it, or use it as a context manager."""

    def __init__(self, directory: int, manifest: Manifest, signed_by: bytes | None) -> None:
        self._stack = ExitStack()
        self._directory = directory
        self._stack.callback(os.close, directory)
        self._manifest = manifest
        self.signed_by = signed_by
        """The trusted key that signed the manifest; None only where unsigned bundles were allowed."""
        self.identity = manifest.identity
        """SHA-256 of the manifest: another byte in any file is another identity."""
        try:
            self.description = self._describe()
        except BaseException:
            self.close()
            raise
        self.kv_identity = kv_identity(manifest, self.description)
        """Narrower than `identity`: equal for two bundles whose KV blocks mean the same. Without adapter."""
        self.template_ids = manifest.template_ids
        self.adapter_names = tuple(manifest.adapters)

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    def adapter_kv_identity(self, name: str) -> bytes:
        """Of the KV blocks that requests with this adapter make: its weights decide, not its name or its neighbours."""
        if name not in self._manifest.adapters:
            raise BundleRejected("adapters", f"has none of the {len(name)}-character name asked for")
        return kv_identity(self._manifest, self.description, name)

    def read_tokenizer(self) -> bytes:
        """The tokenizer's file, whole; its kind is `description.tokenizer.kind`."""
        return self._read(self.description.tokenizer.file)

    def token_bytes(self) -> TokenBytes | None:
        """What each token id spells; None in a bundle that was made without the table."""
        if token_bytes.FILE not in self._manifest.files:
            return None
        return TokenBytes(self._read(token_bytes.FILE), self.description.model.vocab_size)

    def template(self, template_id: str) -> str:
        """The source of `templates/TEMPLATE_ID.jinja`."""
        if template_id not in self.template_ids:
            raise BundleRejected("templates", f"has none of the {len(template_id)}-character id asked for")
        path = f"templates/{template_id}.jinja"
        try:
            return self._read(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise BundleRejected(path, "is not UTF-8") from error

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _describe(self) -> BundleDescription:
        described = description.parse_description(self._read(description.FILE))
        self._manifest.entry(described.tokenizer.file)
        if described.chat_template is not None and described.chat_template not in self._manifest.template_ids:
            raise BundleRejected(f"templates/{described.chat_template}.jinja", "is missing from the manifest")
        for file in description.TOKENIZER_FILES.values():
            if file in self._manifest.files and file != described.tokenizer.file:
                raise BundleRejected(file, "is a second tokenizer, which nothing describes")
        return described

    def _read(self, path: str) -> bytes:
        fd = files.open_file(self._directory, path)
        try:
            return files.read_verified(fd, self._manifest.entry(path))
        finally:
            os.close(fd)


class Bundle(Assets):
    """A bundle of which every file has been verified. Its weight fds are its own and end with it: dup to keep one."""

    weights: tuple[WeightFile, ...]
    forms: Mapping[str, Form]
    """How each tensor of the model is stored."""
    adapters: Mapping[str, AdapterFile]
    """By name; each has been held against the model."""

    def __init__(self, directory: int, manifest: Manifest, signed_by: bytes | None, *, into_memory: bool) -> None:
        super().__init__(directory, manifest, signed_by)
        try:
            files.check_no_others(directory, frozenset({*manifest.files, *_UNLISTED}))
            opened = {path: self._verify(path, into_memory) for path in sorted(manifest.files)}
            self.weights = tuple(self._weights(entry.path, opened[entry.path]) for entry in manifest.weights)
            self.forms = layout.check_tensors(self.description.model, _merged(self.weights))
            self.adapters = {
                name: self._adapter(entry, opened[entry.path]) for name, entry in manifest.adapters.items()
            }
        except BaseException:
            self.close()
            raise

    def weight_fds(self) -> tuple[int, ...]:
        """One safetensors image each, in the order of their names."""
        return tuple(weights.fd for weights in self.weights)

    def adapter_fds(self) -> tuple[tuple[str, int], ...]:
        """Name and safetensors image of each adapter, in the order of `adapter_names`."""
        return tuple((name, adapter.fd) for name, adapter in self.adapters.items())

    def _verify(self, path: str, into_memory: bool) -> int:
        entry = self._manifest.entry(path)
        fd = files.open_file(self._directory, path)
        self._stack.callback(os.close, fd)
        if not into_memory or entry not in (*self._manifest.weights, *self._manifest.adapters.values()):
            files.verify(fd, entry)
            return fd
        copy = files.verify_into_memory(fd, entry)
        self._stack.callback(os.close, copy)
        return copy

    def _adapter(self, entry: FileEntry, fd: int) -> AdapterFile:
        tensors = read_header(entry.path, fd).tensors
        ranks = adapters.check_adapter(self.description.model, tensors, entry.path)
        return AdapterFile(entry.path, fd, ranks, entry.size)

    @staticmethod
    def _weights(path: str, fd: int) -> WeightFile:
        return WeightFile(path, fd, read_header(path, fd).tensors)


_UNLISTED: Final = (manifest.FILE, manifest.SIGNATURE_FILE)


def open_bundle(
    path: str | os.PathLike[str],
    *,
    trusted_keys: Sequence[bytes],
    allow_unsigned: bool = False,
    into_memory: bool = False,
) -> Bundle:
    """Verifies the whole bundle; `allow_unsigned` excuses a missing signature, never a wrong one.

    With `into_memory` weights and adapters are sealed memfds, which nobody can change or truncate afterwards.
    """
    directory, listed, signed_by = _open(path, trusted_keys, allow_unsigned)
    return Bundle(directory, listed, signed_by, into_memory=into_memory)


def open_unvouched(path: str | os.PathLike[str]) -> Bundle:
    """Looks at no signature: for showing a bundle, never for serving one. Files are verified as ever."""
    directory, listed, _ = _open(path, None, allow_unsigned=True)
    return Bundle(directory, listed, None, into_memory=False)


def open_assets(path: str | os.PathLike[str], *, trusted_keys: Sequence[bytes], allow_unsigned: bool = False) -> Assets:
    """Verifies the signature now, and each small file when it is read; weights are not opened."""
    return Assets(*_open(path, trusted_keys, allow_unsigned))


def _open(
    path: str | os.PathLike[str], trusted_keys: Sequence[bytes] | None, allow_unsigned: bool
) -> tuple[int, Manifest, bytes | None]:
    directory = files.open_directory(path)
    try:
        data = _read_unlisted(directory, manifest.FILE, manifest.MAX_BYTES)
        signed_by = None
        if trusted_keys is not None:
            signed_by = _check_signature(directory, data, trusted_keys, allow_unsigned)
        return directory, manifest.parse_manifest(data), signed_by
    except BaseException:
        os.close(directory)
        raise


def _check_signature(directory: int, data: bytes, trusted_keys: Sequence[bytes], allow_unsigned: bool) -> bytes | None:
    try:
        signed = _read_unlisted(directory, manifest.SIGNATURE_FILE, signature.SIGNATURE_BYTES)
    except BundleRejected as rejected:
        if allow_unsigned and isinstance(rejected.__cause__, FileNotFoundError):
            return None
        raise
    return signature.verify(data, signed, trusted_keys)


def _read_unlisted(directory: int, name: str, most: int) -> bytes:
    fd = files.open_file(directory, name)
    try:
        return files.read_bounded(fd, name, most)
    finally:
        os.close(fd)


def _merged(weights: Sequence[WeightFile]) -> dict[str, Tensor]:
    merged: dict[str, Tensor] = {}
    for file in weights:
        for name, tensor in file.tensors.items():
            if name in merged:
                raise BundleRejected(file.path, f"tensor {name} is in another weights file too")
            merged[name] = tensor
    return merged
