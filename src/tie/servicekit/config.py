"""Reads one section of the node's TOML file into a frozen dataclass; anything unknown stops the start."""

from __future__ import annotations

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from tie.contracts.errors import ConfigError
from tie.contracts.paths import RunPaths

T = TypeVar("T")
SECTIONS: Final = frozenset(
    {"node", "cloudboardd", "cloud_app", "afm_runtime", "model_owner", "status_probe", "gpuhealthd", "controllerd"}
)


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What every process of a node knows."""

    run_dir: str
    bundle_dir: str
    trusted_keys_file: str = ""
    allow_unsigned_bundle: bool = False
    log_level: str = "info"
    admitted_uids: tuple[int, ...] = ()

    @property
    def paths(self) -> RunPaths:
        return RunPaths(Path(self.run_dir))


def load(path: Path, section: str, kind: type[T]) -> T:
    """The section as `kind`, a frozen dataclass of bool, int, float, str and tuple[int, ...] fields.

    Raises ConfigError that names file, section and key: unreadable file, unknown section or key, wrong type,
    missing key without a default.
    """
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{path}: not a readable TOML file: {error}") from error
    if unknown := sorted(set(document) - SECTIONS):
        raise ConfigError(f"{path}: unknown section {unknown[0]!r}")
    table = document.get(section, {})
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {section!r} is not a table")
    return _build(table, kind, f"{path}: [{section}]")


def _build(table: Mapping[str, Any], kind: type[T], place: str) -> T:
    hints = typing.get_type_hints(kind)
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if unknown := sorted(set(table) - set(fields)):
        raise ConfigError(f"{place}: unknown key {unknown[0]!r}")
    values = {key: _checked(value, hints[key], f"{place} {key}") for key, value in table.items()}
    for name, field in fields.items():
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in values and not has_default:
            raise ConfigError(f"{place}: key {name!r} is missing")
    return kind(**values)


def _checked(value: object, hint: object, place: str) -> object:
    if hint == tuple[int, ...]:
        if isinstance(value, list) and all(type(item) is int for item in value):
            return tuple(value)
        raise ConfigError(f"{place}: expected a list of integers")
    if hint is float and type(value) is int:
        return float(value)
    if type(value) is not hint:
        raise ConfigError(f"{place}: expected {getattr(hint, '__name__', hint)}, found {type(value).__name__}")
    return value
