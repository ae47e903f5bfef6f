"""`tie import`: a source, converted and written as a bundle. Says what it does while it works."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from tie.bundling import convert, gguf_header
from tie.bundling.assets_check import check_template, check_tokenizer
from tie.bundling.convert import Requested
from tie.bundling.errors import ImportRefused, SourceRejected
from tie.bundling.gguf_source import open_gguf
from tie.bundling.hf_source import open_hugging_face
from tie.bundling.peft_adapter import planned_adapter
from tie.bundling.quantise import Stored
from tie.bundling.signing import SigningKey
from tie.bundling.source import Source, SourceTensor
from tie.bundling.tool_calls import tools_of
from tie.bundling.weights_file import PlannedTensor
from tie.bundling.writer import check_destination, write_bundle
from tie.catalog.description import (
    NAME_PATTERN,
    BundleDescription,
    KvDescription,
    KvDtype,
    TokenizerDescription,
    WeightDtype,
)
from tie.catalog.errors import BundleRejected
from tie.catalog.layout import Form
from tie.catalog.manifest import MAX_ADAPTERS

CHAT_TEMPLATE: Final = "chat"
BLOCK_SIZE_TOKENS: Final = 16


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the person who imports asks for; None leaves the choice to the source."""

    dtype: Requested = "as-is"
    kv_dtype: KvDtype | None = None
    name: str | None = None
    release: str = "1"
    force: bool = False
    adapters: tuple[tuple[str, Path], ...] = ()
    """Name, and directory in PEFT's form."""
    offers_tools: bool = True
    """Where the chat template, or `tool_markers`, says how the model calls them."""
    tool_markers: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    identity: bytes
    description: BundleDescription
    weight_bytes: int
    adapters: int
    notes: tuple[str, ...]


def import_bundle(
    path: Path, destination: Path, wanted: Wanted, key: SigningKey | None, console: Console | None = None
) -> Imported:
    """Raises a `CatalogError` that names the file and the fault; the destination is then as it was."""
    check_destination(destination, wanted.force)
    _check_names(wanted.adapters)
    with _rejected_as_source(), _opener(path) as source, ExitStack() as stack:
        check_tokenizer(source.tokenizer, source.model.vocab_size)
        if source.chat_template is not None:
            check_template(source.chat_template)
        tensors = _planned(source, wanted.dtype)
        described = _described(source, tensors, wanted)
        adapters = {name: planned_adapter(at, source.model, stack) for name, at in wanted.adapters}
        total = sum(tensor.size_bytes for tensor in tensors)
        more = sum(tensor.size_bytes for planned in adapters.values() for tensor in planned)
        with _bar(console) as progress:
            task = progress.add_task(f"importing {described.name}", total=total + more)
            identity = write_bundle(
                destination,
                described,
                tokenizer=source.tokenizer.data,
                templates={} if source.chat_template is None else {CHAT_TEMPLATE: source.chat_template},
                tensors=tensors,
                adapters=adapters,
                key=key,
                force=wanted.force,
                progress=lambda count: progress.advance(task, count),
            )
        return Imported(identity, described, total, len(adapters), source.notes)


def _check_names(adapters: Sequence[tuple[str, Path]]) -> None:
    names = [name for name, _ in adapters]
    if len(names) > MAX_ADAPTERS:
        raise ImportRefused(f"{len(names)} adapters are more than the {MAX_ADAPTERS} that a bundle holds")
    if not all(NAME_PATTERN.fullmatch(name) for name in names):
        raise ImportRefused(f"the name of an adapter must match {NAME_PATTERN.pattern}")
    if len(set(names)) != len(names):
        raise ImportRefused("two adapters have the same name")


def _opener(path: Path) -> AbstractContextManager[Source]:
    if path.is_dir():
        return open_hugging_face(path)
    try:
        with path.open("rb") as file:
            magic = file.read(len(gguf_header.MAGIC))
    except OSError as error:
        raise SourceRejected(path.name, f"cannot be opened: {error.strerror}") from error
    if magic != gguf_header.MAGIC:
        raise SourceRejected(path.name, "is neither a GGUF file nor a directory with config.json and safetensors")
    return open_gguf(path)


def _planned(source: Source, requested: Requested) -> list[PlannedTensor]:
    planned = []
    for tensor in source.tensors.values():
        form = convert.target_form(tensor, requested)
        chunks = _Chunks(tensor, form)
        planned.append(PlannedTensor(tensor.name, tensor.shape, form, chunks))
    return planned


@dataclass(frozen=True, slots=True)
class _Chunks:
    tensor: SourceTensor
    form: Form

    def __call__(self) -> Iterator[tuple[int, Stored]]:
        return convert.converted(self.tensor, self.form)


def _described(source: Source, tensors: list[PlannedTensor], wanted: Wanted) -> BundleDescription:
    dtype = _dominant(tensors)
    name = wanted.name if wanted.name is not None else source.name
    for text, what in ((name, "name"), (wanted.release, "release")):
        if NAME_PATTERN.fullmatch(text) is None:
            raise ImportRefused(f"the {what} must match {NAME_PATTERN.pattern}")
    tokenizer = source.tokenizer
    return BundleDescription(
        name,
        wanted.release,
        replace(source.model, dtype=dtype),
        TokenizerDescription(tokenizer.kind, tokenizer.bos_token_id, tokenizer.add_bos, tokenizer.eos_token_ids),
        CHAT_TEMPLATE if source.chat_template is not None else None,
        KvDescription(BLOCK_SIZE_TOKENS, wanted.kv_dtype or ("f32" if dtype == "f32" else "bf16")),
        tools_of(source.chat_template, wanted.tool_markers) if wanted.offers_tools else None,
    )


def _dominant(tensors: list[PlannedTensor]) -> WeightDtype:
    """The form that most of the layers' numbers are in; what the bundle says of itself, for people."""
    elements: Counter[str] = Counter()
    for tensor in tensors:
        if len(tensor.shape) == 2 and tensor.name.startswith("layers."):
            elements[tensor.form.removesuffix("_min")] += int(np.prod(tensor.shape))
    return cast(WeightDtype, elements.most_common(1)[0][0])


@contextmanager
def _rejected_as_source() -> Iterator[None]:
    """The checks that bundles and sources share speak of bundles; here the file at fault is the source's."""
    try:
        yield
    except BundleRejected as rejected:
        raise SourceRejected(rejected.file, rejected.fault) from rejected


def _bar(console: Console | None) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=console is None or not console.is_terminal,
        transient=True,
    )
