"""The node's one configuration file: defaults, then the user's file, then the command line; written to RUN/node.toml.

Only the keys that the launcher itself decides are known here; each process checks its own section when it starts.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tie.catalog.signature import default_trusted_keys_path
from tie.contracts.errors import ConfigError
from tie.contracts.paths import RunPaths
from tie.servicekit.config import SECTIONS

Scalar = bool | int | float | str | list[int]
Document = dict[str, dict[str, Scalar]]

DEFAULT_MAX_RUNNING: Final = 64


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `tie up` was asked for; None where the configuration file or a default decides."""

    run_dir: Path
    bundle: Path | None = None
    config: Path | None = None
    threads: int | None = None
    listen: str | None = None
    allow_unsigned_bundle: bool = False


def build_folder() -> Path:
    """Where `make` puts what it builds: beside the virtual environment that runs this."""
    return Path(sys.prefix).parent / "build"


def compose(options: UpOptions, environment: Mapping[str, str]) -> Document:
    """The node's whole configuration. Raises ConfigError that names what is missing or unknown."""
    document = _defaults(options.run_dir, environment)
    if options.config is not None:
        _merge(document, _read(options.config), str(options.config))
    _merge(document, _from_command_line(options), "command line")
    _check_bundle(document)
    return document


def write(document: Document, path: Path) -> None:
    """Replaces the file at once, readable by its owner only."""
    scratch = path.with_suffix(".new")
    scratch.unlink(missing_ok=True)
    scratch.touch(mode=0o600, exist_ok=False)
    scratch.write_text(to_toml(document), "utf-8")
    scratch.replace(path)


def to_toml(document: Document) -> str:
    """Tables of scalars and integer lists as TOML. A JSON string without escaped non-ASCII is a TOML string too."""
    lines: list[str] = []
    for section, table in document.items():
        lines.append(f"[{section}]")
        lines.extend(f"{key} = {_value(table[key], f'[{section}] {key}')}" for key in table)
        lines.append("")
    return "\n".join(lines)


def _defaults(run_dir: Path, environment: Mapping[str, str]) -> Document:
    bundle = environment.get("TIE_BUNDLE") or str(build_folder() / "bundles" / "smollm2")
    node: dict[str, Scalar] = {"run_dir": str(run_dir), "bundle_dir": bundle}
    if (trusted := default_trusted_keys_path()).is_file():
        node["trusted_keys_file"] = str(trusted)
    runtime: dict[str, Scalar] = {
        "threads": os.cpu_count() or 1,
        "max_running": DEFAULT_MAX_RUNNING,
        "triton_dir": str(build_folder() / "triton"),
        "python": str(Path(sys.prefix) / "bin" / "python3"),
    }
    return {"node": node, "cloudboardd": {"listen": "127.0.0.1:0"}, "cloud_app": {}, "afm_runtime": runtime}


def _from_command_line(options: UpOptions) -> Document:
    node: dict[str, Scalar] = {"run_dir": str(options.run_dir)}
    if options.bundle is not None:
        node["bundle_dir"] = str(options.bundle.absolute())
    if options.allow_unsigned_bundle:
        node["allow_unsigned_bundle"] = True
    document: Document = {"node": node}
    if options.listen is not None:
        document["cloudboardd"] = {"listen": options.listen}
    if options.threads is not None:
        document["afm_runtime"] = {"threads": options.threads}
    return document


def _read(path: Path) -> Document:
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not a readable TOML file: {error}") from error
    for section, table in document.items():
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {section!r} is not a table")
    return document


def _merge(document: Document, other: Document, source: str) -> None:
    for section, table in other.items():
        if section not in SECTIONS:
            raise ConfigError(f"{source}: unknown section {section!r}")
        document[section].update(table)


def _check_bundle(document: Document) -> None:
    directory = Path(str(document["node"]["bundle_dir"]))
    if not (directory / "bundle.toml").is_file():
        raise ConfigError(
            f"no model bundle in {directory}: make one with `tie import`, or name one with --bundle or TIE_BUNDLE"
        )


def _value(value: Scalar, place: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list) and all(type(item) is int for item in value):
        return json.dumps(value)
    raise ConfigError(f"{place}: cannot be written as a setting: {type(value).__name__}")


def paths_of(document: Document) -> RunPaths:
    return RunPaths(Path(str(document["node"]["run_dir"])))
