"""Which kind of attention each layer of a Hugging Face configuration has, and the pattern in which kinds repeat.

A layer has a type, full or sliding, which `layer_types` gives or a rule of the family; and in some families a flag
that says whether it tells positions apart at all.
"""

import re
from typing import Any, Final

from tie.bundling.hf_families import Family
from tie.bundling.hf_rope import FULL, SLIDING, Ropes
from tie.catalog.attention import GLOBAL, LOCAL
from tie.catalog.bounds import MAX_CONTEXT, MAX_LAYERS
from tie.catalog.tables import Table

_NO_ROPE: Final = "no_rope_layers"
_TYPE_NAME: Final = re.compile(r"[a-z_]{1,32}")


def read_layers(
    table: Table, values: dict[str, Any], family: Family, layer_count: int, ropes: Ropes, positions: int
) -> dict[str, Any]:
    """`attention` and `layer_pattern` of a model description; `values` are what `table` reads."""
    window = _window(table, family)
    has_rope = _has_rope(table, values, layer_count) if family.layer_rule == "without_rope" else [True] * layer_count
    types = _types(table, family, has_rope, window)
    if SLIDING in types and window is None:
        raise table.refusal("sliding_window", "is not in use, but layer_types has layers that need it")
    if window is not None and window >= positions:
        window = None  # it would never hide anything
    kinds: dict[str, dict[str, Any]] = {}
    names = []
    for layer_type, rotates in zip(types, has_rope, strict=True):
        name = (LOCAL if layer_type == SLIDING else GLOBAL) + ("" if rotates else "_nope")
        kind: dict[str, Any] = {"window": window} if layer_type == SLIDING and window is not None else {}
        kinds[name] = kind | ({"rope": ropes.of(layer_type)} if rotates else {})
        names.append(name)
    first = kinds[names[0]]
    if all(kind == first for kind in kinds.values()):
        kinds, names = {GLOBAL: first}, [GLOBAL]
    return {"attention": kinds, "layer_pattern": _repeated_part(names)}


def _window(table: Table, family: Family) -> int | None:
    """None where no layer has one."""
    if family.window_flag is not None and not (table.has(family.window_flag) and table.flag(family.window_flag)):
        return None
    return table.integer("sliding_window", 1, MAX_CONTEXT) if table.has("sliding_window") else None


def _types(table: Table, family: Family, has_rope: list[bool], window: int | None) -> list[str]:
    types = _types_by_rule(table, family, has_rope, window)
    if not table.has("layer_types"):
        return types
    if not family.has_layer_types:
        table.only("layer_types", types)
        return types
    given = table.texts("layer_types", _TYPE_NAME, most=MAX_LAYERS)
    if len(given) != len(types) or not set(given) <= {FULL, SLIDING}:
        raise table.refusal("layer_types", f"must have {FULL} or {SLIDING} for each of {len(types)} layers")
    return list(given)


def _types_by_rule(table: Table, family: Family, has_rope: list[bool], window: int | None) -> list[str]:
    layers = range(len(has_rope))
    match family.layer_rule:
        case "full":
            slides = [False for _ in layers]
        case "sliding":
            slides = [window is not None for _ in layers]
        case "upper":
            first = table.integer("max_window_layers", 0, MAX_LAYERS)
            slides = [window is not None and layer >= first for layer in layers]
        case "alternating":
            slides = [layer % 2 == 0 for layer in layers]
        case "every_nth":
            nth = table.integer("sliding_window_pattern", 1, MAX_LAYERS)
            slides = [(layer + 1) % nth != 0 for layer in layers]
        case "without_rope":
            slides = [window is not None and not rotates for rotates in has_rope]
    return [SLIDING if slide else FULL for slide in slides]


def _has_rope(table: Table, values: dict[str, Any], layer_count: int) -> list[bool]:
    if not table.has(_NO_ROPE):
        interval = table.integer("no_rope_layer_interval", 1, MAX_LAYERS)
        return [(layer + 1) % interval != 0 for layer in range(layer_count)]
    flags = values[_NO_ROPE]  # despite the name, 1 is a layer with a rotary embedding
    if (
        not isinstance(flags, list)
        or len(flags) < layer_count
        or any(type(flag) is not int or flag not in (0, 1) for flag in flags)
    ):
        raise table.refusal(_NO_ROPE, f"must be a list of 0 or 1 for each of {layer_count} layers")
    return [flag == 1 for flag in flags[:layer_count]]


def _repeated_part(names: list[str]) -> list[str]:
    """The shortest beginning that gives the whole when it is repeated, its last time perhaps in part."""
    for length in range(1, len(names)):
        if all(name == names[place % length] for place, name in enumerate(names)):
            return names[:length]
    return names
