"""What a GGUF file's metadata says of the model, as our description. A key under the architecture's name that is not
known here is refused: it may change what the model computes.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from tie.bundling.errors import SourceRejected
from tie.bundling.quantise import F32
from tie.catalog.attention import GLOBAL
from tie.catalog.bounds import (
    MAX_CONTEXT,
    MAX_FACTOR,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_THETA,
    MAX_VOCAB,
)
from tie.catalog.description import LAYOUT, ModelDescription, parse_model
from tie.catalog.rope import LinearScaling, Llama3Scaling, NoScaling, RopeScaling, YarnScaling
from tie.catalog.tables import Table

ARCHITECTURES: Final = ("llama", "qwen2")
_DEFAULT_THETA: Final = 10_000.0
_WINDOW: Final = "attention.sliding_window"
_KV_HEADS: Final = "attention.head_count_kv"
# The released Llama 3 models differ in `factor` only; the file keeps none of the four, just what they amount to.
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT = 1.0, 4.0, 8192


def read_architecture(file: str, values: Mapping[str, Any]) -> str:
    architecture = values.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        shown = architecture if isinstance(architecture, str) and re.fullmatch(r"[\w-]{1,40}", architecture) else "?"
        raise SourceRejected(file, f"is of architecture {shown}; imported are {', '.join(ARCHITECTURES)}")
    return architecture


def read_model(
    file: str,
    values: Mapping[str, Any],
    *,
    vocab_size: int,
    tied_embeddings: bool,
    qkv_bias: bool,
    rope_divisors: F32 | None,
) -> ModelDescription:
    """`rope_divisors` is the tensor rope_freqs, by which Llama 3 files divide each frequency."""
    architecture = read_architecture(file, values)
    table = _own_keys(file, values, architecture)
    if table.has("vocab_size") and table.integer("vocab_size", 1, MAX_VOCAB) != vocab_size:
        raise table.refusal("vocab_size", f"is not the {vocab_size} of the embedding")
    hidden = table.integer("embedding_length", 1, MAX_HIDDEN)
    heads = table.integer("attention.head_count", 1, MAX_HEADS)
    head_dim = _head_dim(table, hidden, heads)
    kv_heads = table.integer(_KV_HEADS, 1, MAX_HEADS) if table.has(_KV_HEADS) else heads
    context = table.integer("context_length", 1, MAX_CONTEXT)
    rope = _rope(table, architecture, head_dim, rope_divisors)
    model = {
        "architecture": architecture,
        "layout": LAYOUT,
        "dtype": "f32",
        "hidden_size": hidden,
        "intermediate_size": table.integer("feed_forward_length", 1, MAX_INTERMEDIATE),
        "layer_count": table.integer("block_count", 1, MAX_LAYERS),
        "query_heads": heads,
        "kv_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab_size,
        "context_length": context,
        "norm_eps": shortest(table.number("attention.layer_norm_rms_epsilon", 1e-12, 1e-1)),
        "tied_embeddings": tied_embeddings,
        "activation": "silu",
        "qkv_bias": qkv_bias,
        **dict.fromkeys(("output_bias", "mlp_bias", "qk_norm", "post_norms"), False),
        "layer_pattern": [GLOBAL],
        "attention": {GLOBAL: _window(table, architecture, context) | {"rope": rope}},
    }
    table.finish()
    return parse_model(model, file)


def shortest(value: float) -> float:
    """The shortest decimal that is the same f32: the file's 9.999999747378752e-06 is the 1e-5 that its maker wrote."""
    return float(str(np.float32(value)))


def _own_keys(file: str, values: Mapping[str, Any], architecture: str) -> Table:
    prefix = architecture + "."
    own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    table = Table(file, own, prefix, SourceRejected)
    if table.has("expert_count"):
        table.integer("expert_count", 0, 0)
    return table


def _head_dim(table: Table, hidden: int, heads: int) -> int:
    if not table.has("attention.key_length"):
        if hidden % heads:
            raise table.refusal("attention.head_count", f"does not divide the embedding length {hidden}")
        return hidden // heads
    head_dim = table.integer("attention.key_length", 2, MAX_HEAD_DIM)
    if table.has("attention.value_length") and table.integer("attention.value_length", 2, MAX_HEAD_DIM) != head_dim:
        raise table.refusal("attention.value_length", "differs from attention.key_length")
    return head_dim


def _window(table: Table, architecture: str, context: int) -> dict[str, int]:
    """Files of Mistral models are llama files; their window is every layer's. Which of Qwen2's have one is not told."""
    if architecture != "llama" or not table.has(_WINDOW):
        return {}
    window = table.integer(_WINDOW, 0, MAX_CONTEXT)
    return {"window": window} if 0 < window < context else {}


def _rope(table: Table, architecture: str, head_dim: int, divisors: F32 | None) -> dict[str, Any]:
    theta = shortest(table.number("rope.freq_base", 1.0, MAX_THETA)) if table.has("rope.freq_base") else _DEFAULT_THETA
    rotary_dim = table.integer("rope.dimension_count", 2, head_dim) if table.has("rope.dimension_count") else head_dim
    if architecture == "llama" and rotary_dim != head_dim:  # nor does anything else read such a file
        raise table.refusal("rope.dimension_count", f"is {rotary_dim}, not the head's {head_dim}")
    scaling = _scaling(table)
    if divisors is not None:
        if not isinstance(scaling, NoScaling):
            raise table.refusal("rope.scaling.type", "is set beside a tensor rope_freqs")
        scaling = _llama3(table, divisors, theta, rotary_dim)
    fields = {name: getattr(scaling, name) for name in scaling.__dataclass_fields__}
    return {
        "theta": theta,
        "rotary_dim": rotary_dim,
        "scaling": {name: value for name, value in fields.items() if value is not None},
    }


def _scaling(table: Table) -> RopeScaling:
    kind = "none"
    if table.has("rope.scaling.type"):
        kind = table.choice("rope.scaling.type", "none", "linear", "yarn")
    if table.has("rope.scaling.finetuned"):
        table.flag("rope.scaling.finetuned")  # how the model was made, not how it is run
    if kind == "none":
        return NoScaling()
    factor = shortest(table.number("rope.scaling.factor", 1.0, MAX_FACTOR))
    if kind == "linear":
        return LinearScaling(factor)
    attention = None
    if table.has("rope.scaling.attn_factor"):
        # The file's factor multiplies the usual one; ours, like transformers', replaces it.
        attention = shortest(table.number("rope.scaling.attn_factor", 1e-3, 1e3)) * (0.1 * math.log(factor) + 1)
    return YarnScaling(
        factor,
        table.integer("rope.scaling.original_context_length", 1, MAX_CONTEXT),
        _optional(table, "rope.scaling.yarn_beta_fast", 32.0),
        _optional(table, "rope.scaling.yarn_beta_slow", 1.0),
        attention,
    )


def _optional(table: Table, key: str, default: float) -> float:
    return shortest(table.number(key, 1e-3, MAX_FACTOR)) if table.has(key) else default


def _llama3(table: Table, divisors: F32, theta: float, rotary_dim: int) -> Llama3Scaling:
    """The Llama 3 scaling that gives these divisors, if one of the released shape does."""
    if divisors.shape != (rotary_dim // 2,) or not np.isfinite(divisors).all() or not 1 <= divisors.max() <= MAX_FACTOR:
        raise table.refusal("rope_freqs.weight", f"is not a tensor of {rotary_dim // 2} numbers in 1..{MAX_FACTOR:g}")
    scaling = Llama3Scaling(float(divisors.max()), _LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_CONTEXT)
    if not np.allclose(divisors, llama3_divisors(scaling, theta, rotary_dim), rtol=1e-4):
        raise table.refusal("rope_freqs.weight", "is a scaling other than that of the released Llama 3 models")
    return scaling


def llama3_divisors(scaling: Llama3Scaling, theta: float, rotary_dim: int) -> F32:
    """1 for short wavelengths, `factor` for long ones, and smoothly in between."""
    wavelengths = 2 * np.pi * theta ** (np.arange(0, rotary_dim, 2, dtype=np.float64) / rotary_dim)
    periods = scaling.original_context_length / wavelengths
    smooth = (periods - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    smooth = np.clip(smooth, 0, 1)
    return (1 / ((1 - smooth) / scaling.factor + smooth)).astype(np.float32)
