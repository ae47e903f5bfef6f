"""`tie import` and `tie inspect`: arguments in, one clear line or table out, exit code 0 done, 1 refused, 2 usage."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tie.bundling.importing import Imported, Wanted, import_bundle
from tie.bundling.inspect import inspect_bundle, show
from tie.bundling.signing import SigningKey, development_key, load_key
from tie.catalog.errors import CatalogError
from tie.catalog.signature import default_trusted_keys_path, load_trusted_keys


class WeightType(StrEnum):
    AS_IS = "as-is"
    F32 = "f32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"


class KvType(StrEnum):
    F32 = "f32"
    BF16 = "bf16"


def register(app: typer.Typer) -> None:
    app.command("import")(import_command)
    app.command("inspect")(inspect_command)


def import_command(
    source: Annotated[Path, typer.Argument(help="A GGUF file, or a directory with config.json and safetensors.")],
    destination: Annotated[Path, typer.Argument(help="Where the bundle shall be.")],
    dtype: Annotated[WeightType, typer.Option(help="What matrices are stored as.")] = WeightType.AS_IS,
    kv_dtype: Annotated[KvType | None, typer.Option(help="Of the KV cache; f32 for f32 weights, else bf16.")] = None,
    name: Annotated[str | None, typer.Option(help="The model's name; from the source's unless given.")] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=DIR", help="A LoRA adapter in PEFT's form, and its name; may be repeated."),
    ] = None,
    release: Annotated[str, typer.Option(help="The release that this bundle is of the model.")] = "1",
    tool_markers: Annotated[
        tuple[str, str] | None,
        typer.Option(
            metavar="BEGIN END", help="What opens and closes a tool call; from the chat template unless given."
        ),
    ] = None,
    no_tools: Annotated[bool, typer.Option("--no-tools", help="Let the bundle serve no requests with tools.")] = False,
    sign_with: Annotated[Path | None, typer.Option(help="An Ed25519 key in PEM, instead of your own.")] = None,
    unsigned: Annotated[bool, typer.Option("--unsigned", help="Make a bundle that only development takes.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a bundle that is there.")] = False,
) -> None:
    """Make a signed bundle out of a model."""
    if sign_with is not None and unsigned:
        raise typer.BadParameter("--sign-with and --unsigned exclude each other")
    if tool_markers is not None and no_tools:
        raise typer.BadParameter("--tool-markers and --no-tools exclude each other")
    console = Console(stderr=True)
    with _refusals(console):
        key = None if unsigned else _key(sign_with, console)
        adapters = _adapters(adapter or ())
        wanted = Wanted(
            dtype.value,
            kv_dtype.value if kv_dtype else None,
            name,
            release,
            force,
            adapters,
            offers_tools=not no_tools,
            tool_markers=tool_markers,
        )
        _report(import_bundle(source, destination, wanted, key, console), destination, key, console)


def inspect_command(
    bundle: Annotated[Path, typer.Argument(help="The bundle's directory.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
    trusted_keys: Annotated[Path | None, typer.Option(help="File of trusted keys; yours unless given.")] = None,
) -> None:
    """Verify a bundle and show what it says and holds."""
    with _refusals(Console(stderr=True)):
        path = trusted_keys or default_trusted_keys_path()
        keys = load_trusted_keys(path) if trusted_keys or path.exists() else ()
        inspected = inspect_bundle(bundle, keys)
    if as_json:
        typer.echo(json.dumps(inspected.values))
    else:
        show(inspected, Console())


def _adapters(entries: Sequence[str]) -> tuple[tuple[str, Path], ...]:
    pairs = [entry.partition("=") for entry in entries]
    if not all(separator and directory for _, separator, directory in pairs):
        raise typer.BadParameter("--adapter must be NAME=DIR")
    return tuple((name, Path(directory)) for name, _, directory in pairs)


def _key(sign_with: Path | None, console: Console) -> SigningKey:
    if sign_with is not None:
        return load_key(sign_with)
    key = development_key()
    if key.is_new:
        _say(console, f"made a development signing key, {key.path}, and trust it on this machine")
    return key


def _report(imported: Imported, destination: Path, key: SigningKey | None, console: Console) -> None:
    described = imported.description
    adapters = f"{imported.adapters} adapter{'s' if imported.adapters > 1 else ''}, " if imported.adapters else ""
    signed = f"signed by {key.public.hex()}" if key is not None else "unsigned"
    for note in imported.notes:
        _say(console, f"note: {note}")
    _say(
        console,
        f"{destination}: {described.name} {described.release}, {described.model.dtype}, "
        f"{imported.weight_bytes / 1e6:.1f} MB of weights, {adapters}identity {imported.identity.hex()}, {signed}",
    )


@contextmanager
def _refusals(console: Console) -> Iterator[None]:
    try:
        yield
    except CatalogError as error:
        _say(console, f"refused: {error}")
        raise typer.Exit(1) from None
    except OSError as error:
        name = f"{Path(error.filename).name}: " if isinstance(error.filename, str) else ""
        _say(console, f"failed: {name}{error.strerror}")
        raise typer.Exit(1) from None


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)
