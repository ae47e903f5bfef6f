"""Rotary embeddings, as a kind of attention describes them."""

from dataclasses import dataclass
from typing import Literal

from tie.catalog.bounds import MAX_CONTEXT, MAX_FACTOR, MAX_THETA
from tie.catalog.tables import Table


@dataclass(frozen=True, slots=True)
class NoScaling:
    kind: Literal["none"] = "none"


@dataclass(frozen=True, slots=True)
class LinearScaling:
    factor: float
    kind: Literal["linear"] = "linear"


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_length: int
    kind: Literal["llama3"] = "llama3"


@dataclass(frozen=True, slots=True)
class YarnScaling:
    factor: float
    original_context_length: int
    beta_fast: float
    beta_slow: float
    attention_factor: float | None = None
    kind: Literal["yarn"] = "yarn"


RopeScaling = NoScaling | LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float
    rotary_dim: int  # of each head, the first so many numbers are rotated
    scaling: RopeScaling = NoScaling()


def parse_rope(table: Table, head_dim: int) -> Rope:
    theta = table.number("theta", 1.0, MAX_THETA)
    rotary_dim = table.integer("rotary_dim", 2, head_dim)
    if rotary_dim % 2:
        raise table.refusal("rotary_dim", f"is {rotary_dim}, not even")
    scaling = _scaling(table.table("scaling")) if table.has("scaling") else NoScaling()
    table.finish()
    return Rope(theta, rotary_dim, scaling)


def _scaling(table: Table) -> RopeScaling:
    scaling: RopeScaling
    match table.choice("kind", "none", "linear", "llama3", "yarn"):
        case "linear":
            scaling = LinearScaling(table.number("factor", 1.0, MAX_FACTOR))
        case "llama3":
            scaling = Llama3Scaling(
                table.number("factor", 1.0, MAX_FACTOR),
                table.number("low_freq_factor", 1e-3, MAX_FACTOR),
                table.number("high_freq_factor", 1e-3, MAX_FACTOR),
                table.integer("original_context_length", 1, MAX_CONTEXT),
            )
            if scaling.high_freq_factor <= scaling.low_freq_factor:
                raise table.refusal("high_freq_factor", "is not above low_freq_factor")
        case "yarn":
            scaling = YarnScaling(
                table.number("factor", 1.0, MAX_FACTOR),
                table.integer("original_context_length", 1, MAX_CONTEXT),
                table.number("beta_fast", 1e-3, MAX_FACTOR),
                table.number("beta_slow", 1e-3, MAX_FACTOR),
                table.number("attention_factor", 1e-3, MAX_FACTOR) if table.has("attention_factor") else None,
            )
        case _:
            scaling = NoScaling()
    table.finish()
    return scaling
