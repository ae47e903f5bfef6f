"""Lets a command take its options in groups: a parameter whose type is a dataclass becomes one option a field.

Typer reads a function's signature and knows no groups; without them every command would repeat every option.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable
from inspect import Parameter
from typing import Any


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """`command` as Typer can take it."""
    parameters = inspect.signature(command, eval_str=True).parameters
    groups: dict[str, Any] = {
        name: found.annotation for name, found in parameters.items() if dataclasses.is_dataclass(found.annotation)
    }
    plain = [found.replace(kind=Parameter.KEYWORD_ONLY) for name, found in parameters.items() if name not in groups]
    flat = plain + [option for group in groups.values() for option in _options(group)]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        filled = {
            name: group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
            for name, group in groups.items()
        }
        command(**values, **filled)

    del run.__wrapped__
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    run.__annotations__ = {option.name: option.annotation for option in flat}
    return run


def _options(group: Any) -> list[Parameter]:
    hints = typing.get_type_hints(group, include_extras=True)
    return [
        Parameter(field.name, Parameter.KEYWORD_ONLY, default=field.default, annotation=hints[field.name])
        for field in dataclasses.fields(group)
    ]
