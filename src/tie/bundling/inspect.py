"""`tie inspect`: what a bundle says and holds, after every file of it was verified."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Column, Table

from tie.catalog import manifest
from tie.catalog.bundle import Bundle, open_bundle, open_unvouched
from tie.catalog.errors import BundleRejected
from tie.catalog.layout import PARTS


@dataclass(frozen=True, slots=True)
class Inspected:
    """One bundle, as plain values (`values` is what `--json` prints)."""

    values: dict[str, Any]


def inspect_bundle(path: Path, trusted_keys: Sequence[bytes]) -> Inspected:
    """A bundle that is unsigned, or signed by a stranger, is shown and said to be so; a damaged one is refused."""
    try:
        bundle = open_bundle(path, trusted_keys=trusted_keys, allow_unsigned=True)
        is_stranger = False
    except BundleRejected as rejected:
        if rejected.file != manifest.SIGNATURE_FILE:
            raise
        bundle = open_unvouched(path)
        is_stranger = True
    with bundle:
        return Inspected(_values(bundle, is_stranger))


def show(inspected: Inspected, console: Console) -> None:
    values = inspected.values
    table = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for key in ("name", "release", "identity", "kv_identity", "signature"):
        table.add_row(key.replace("_", " "), str(values[key]))
    for key, text in _model_rows(values["model"]):
        table.add_row(key.replace("_", " "), text)
    for key in ("tokenizer", "templates", "kv"):
        table.add_row(key, _text(values[key]))
    table.add_row("tools", _calls(values["tools"]))
    for name, adapter in values["adapters"].items():
        table.add_row(f"adapter {name}", _text(adapter))
    for form, counted in values["tensors"].items():
        table.add_row(f"{form} tensors", f"{counted['count']}, {counted['bytes'] / 1e6:.1f} MB")
    table.add_row("files", f"{len(values['files'])}, {sum(values['files'].values()) / 1e6:.1f} MB")
    console.print(table)


def _model_rows(model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """What a model has, and not all that it might have had."""
    for key, value in model.items():
        if key == "layer_pattern":
            runs = [(kind, len(list(run))) for kind, run in groupby(value)]
            yield key, ", ".join(f"{count} {kind}" for kind, count in runs) + ("" if len(value) == 1 else ", repeated")
        elif key == "attention":
            yield from ((f"{kind} attention", _text(how) or "all before, no positions") for kind, how in value.items())
        elif not isinstance(value, bool):
            yield key, _text(value)
    yield "with", ", ".join(key.replace("_", " ") for key, value in model.items() if value is True) or "nothing further"


def _values(bundle: Bundle, is_stranger: bool) -> dict[str, Any]:
    described = bundle.description
    if bundle.signed_by is not None:
        signature = f"valid, by trusted key {bundle.signed_by.hex()}"
    else:
        signature = "not valid by any trusted key" if is_stranger else "unsigned"
    return {
        "name": described.name,
        "release": described.release,
        "identity": bundle.identity.hex(),
        "kv_identity": bundle.kv_identity.hex(),
        "signature": signature,
        "is_trusted": bundle.signed_by is not None,
        "model": described.model.to_table(),
        "tokenizer": {
            "kind": described.tokenizer.kind,
            "bos_token_id": described.tokenizer.bos_token_id,
            "add_bos": described.tokenizer.add_bos,
            "eos_token_ids": list(described.tokenizer.eos_token_ids),
        },
        "templates": list(bundle.template_ids),
        "tools": described.tools.to_table() if described.tools is not None else None,
        "kv": {"block_size_tokens": described.kv.block_size_tokens, "dtype": described.kv.dtype},
        "tensors": _tensors(bundle),
        "adapters": {name: _adapter(bundle, name) for name in bundle.adapter_names},
        "files": {path: entry.size for path, entry in sorted(bundle.manifest.files.items())},
    }


def _tensors(bundle: Bundle) -> dict[str, dict[str, int]]:
    sizes = {name: tensor.size_bytes for file in bundle.weights for name, tensor in file.tensors.items()}
    counted: dict[str, dict[str, int]] = {}
    for name, form in bundle.forms.items():
        entry = counted.setdefault(form, {"count": 0, "bytes": 0})
        entry["count"] += 1
        entry["bytes"] += sum(sizes[name + part.suffix] for part in PARTS[form])
    return counted


def _adapter(bundle: Bundle, name: str) -> dict[str, Any]:
    adapter = bundle.adapters[name]
    return {
        "matrices": len(adapter.ranks),
        "ranks": sorted(set(adapter.ranks.values())),
        "bytes": adapter.size_bytes,
        "kv_identity": bundle.adapter_kv_identity(name).hex(),
    }


def _calls(tools: dict[str, Any] | None) -> str:
    if tools is None:
        return "not offered"
    return f"{tools['format']} with {tools['name_key']} and {tools['arguments_key']}, {tools['begin']} … {tools['end']}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(inner)}" for key, inner in value.items())
    return ", ".join(map(_text, value)) if isinstance(value, list) else str(value)
