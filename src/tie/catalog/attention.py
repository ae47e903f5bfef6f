"""The kinds of attention that a model's layers have, and which layer has which.

A layer differs from its neighbours only in what it sees (a window, or everything before it) and in how it tells
positions apart (a rotary embedding, or nothing): that is a kind. The pattern of kinds repeats over the layers.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tie.catalog.bounds import MAX_CONTEXT, MAX_KINDS
from tie.catalog.rope import Rope, parse_rope
from tie.catalog.tables import Table

KIND_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,31}")
GLOBAL: Final = "global"
LOCAL: Final = "local"


@dataclass(frozen=True, slots=True)
class AttentionKind:
    window: int | None = None
    """Key j is visible to query i when i - j < window, and j <= i as ever."""
    rope: Rope | None = None


Kinds = Mapping[str, AttentionKind]


def uniform(rope: Rope | None, window: int | None = None) -> Kinds:
    """The attention of a model whose layers are all alike: one kind, named as the default pattern has it."""
    return {GLOBAL: AttentionKind(window, rope)}


def parse_kinds(table: Table, head_dim: int) -> Kinds:
    """`[model.attention]`: 1 to `MAX_KINDS` tables by their names."""
    kinds = {}
    for name, kind in table.tables(KIND_NAME, most=MAX_KINDS).items():
        window = kind.integer("window", 1, MAX_CONTEXT) if kind.has("window") else None
        rope = parse_rope(kind.table("rope"), head_dim) if kind.has("rope") else None
        kind.finish()
        kinds[name] = AttentionKind(window, rope)
    return kinds


def parse_pattern(table: Table, key: str, kinds: Kinds, layer_count: int) -> tuple[str, ...]:
    """Every entry is a kind and every kind is an entry, so that none is described for nothing."""
    pattern = table.texts(key, KIND_NAME, most=layer_count)
    unknown, unused = sorted(set(pattern) - set(kinds)), sorted(set(kinds) - set(pattern))
    if unknown:
        raise table.refusal(key, f"names {unknown[0]}, which is not among the kinds of attention")
    if unused:
        raise table.refusal(key, f"does not use {unused[0]}, which is among the kinds of attention")
    return pattern
