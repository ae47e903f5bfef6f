"""Rotary embeddings as a Hugging Face configuration gives them, in the words of our description.

Newer files have everything in `rope_parameters`, which may be a table for each type of layer; older ones have
`rope_theta` (and `rope_local_base_freq` for the layers with a window) beside `rope_scaling`.
"""

from typing import Any, Final

from tie.bundling.errors import SourceRejected
from tie.bundling.hf_families import Family
from tie.catalog.bounds import MAX_CONTEXT, MAX_FACTOR, MAX_THETA
from tie.catalog.tables import Table

FULL: Final = "full_attention"
SLIDING: Final = "sliding_attention"
_DEFAULT_THETA: Final = 10_000.0
_ORIGINAL: Final = "original_max_position_embeddings"


class Ropes:
    """Takes the keys out of `table` once; `of` may then be asked for each type of layer that the model has."""

    def __init__(self, table: Table, file: str, family: Family, head_dim: int, positions: int) -> None:
        if table.has("rope_parameters") and table.has("rope_scaling"):
            raise table.refusal("rope_scaling", "is set beside rope_parameters")
        self._family, self._head_dim, self._positions = family, head_dim, positions
        self._theta = _theta(table, "rope_theta", _DEFAULT_THETA)
        self._partial = _partial(table, family, 1.0)
        self._original = table.integer(_ORIGINAL, 1, MAX_CONTEXT) if table.has(_ORIGINAL) else None
        local_theta = _theta(table, "rope_local_base_freq", self._theta)
        key = "rope_parameters" if table.has("rope_parameters") else "rope_scaling"
        rope = table.table(key) if table.has(key) else Table(file, {}, f"{key}.", SourceRejected)
        if not family.is_rope_by_layer_type:
            common = self._read(rope, self._theta)
            self._by_type = {FULL: common, SLIDING: common}
            return
        plain = Table(file, {}, f"{key}.{SLIDING}.", SourceRejected)
        if key == "rope_parameters":
            full = rope.table(FULL) if rope.has(FULL) else plain
            sliding = rope.table(SLIDING) if rope.has(SLIDING) else plain
            rope.finish()
        else:
            full, sliding = rope, plain  # what is scaled in older files is the layers without a window
        self._by_type = {FULL: self._read(full, self._theta), SLIDING: self._read(sliding, local_theta)}

    def of(self, layer_type: str) -> dict[str, Any]:
        return self._by_type[layer_type]

    def _read(self, rope: Table, theta: float) -> dict[str, Any]:
        theta = _theta(rope, "rope_theta", theta)
        rotary_dim = int(self._head_dim * _partial(rope, self._family, self._partial))
        scaling = self._scaling(rope)
        rope.finish()
        return {"theta": theta, "rotary_dim": rotary_dim, "scaling": scaling}

    def _scaling(self, rope: Table) -> dict[str, Any]:
        kind = _kind(rope, self._family)
        scaling: dict[str, Any] = {"kind": "none" if kind == "default" else kind}
        if kind != "default":
            scaling["factor"] = rope.number("factor", 1.0, MAX_FACTOR)
        if kind in ("llama3", "yarn"):
            scaling["original_context_length"] = self._original_length(rope, kind)
        if kind == "llama3":
            scaling["low_freq_factor"] = rope.number("low_freq_factor", 1e-3, MAX_FACTOR)
            scaling["high_freq_factor"] = rope.number("high_freq_factor", 1e-3, MAX_FACTOR)
        if kind == "yarn":
            for key, default in (("beta_fast", 32.0), ("beta_slow", 1.0)):
                scaling[key] = rope.number(key, 1e-3, MAX_FACTOR) if rope.has(key) else default
            if rope.has("attention_factor"):
                scaling["attention_factor"] = rope.number("attention_factor", 1e-3, MAX_FACTOR)
            if rope.has("truncate"):
                rope.only("truncate", True)
        return scaling

    def _original_length(self, rope: Table, kind: str) -> int:
        if self._original is not None:
            if rope.has(_ORIGINAL):
                rope.only(_ORIGINAL, self._original)
            return self._original
        is_given = kind == "llama3" or rope.has(_ORIGINAL)
        return rope.integer(_ORIGINAL, 1, MAX_CONTEXT) if is_given else self._positions


def _theta(table: Table, key: str, default: float) -> float:
    return table.number(key, 1.0, MAX_THETA) if table.has(key) else default


def _partial(table: Table, family: Family, default: float) -> float:
    """Which part of each head is rotated."""
    key = "partial_rotary_factor"
    if not table.has(key):
        return default
    if family.has_partial_rope:
        return table.number(key, 1e-3, 1.0)
    table.only(key, 1.0)
    return 1.0


def _kind(rope: Table, family: Family) -> str:
    kinds = [rope.choice(key, *family.rope_kinds) for key in ("rope_type", "type") if rope.has(key)]
    if len(set(kinds)) > 1:
        raise rope.refusal("type", "differs from rope_type")
    return kinds[0] if kinds else "default"
