"""A Hugging Face `config.json`, as our description. Whatever of it changes what the model computes and is not ours to
express is refused by name; the rest of the file (training, framework versions) is left alone.
"""

from typing import Any, Final, NamedTuple

from tie.bundling.errors import SourceRejected
from tie.bundling.hf_files import set_keys
from tie.catalog.description import (
    LAYOUT,
    MAX_CONTEXT,
    MAX_FACTOR,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_THETA,
    MAX_VOCAB,
    ModelDescription,
    parse_model,
)
from tie.catalog.tables import Table

CONFIG: Final = "config.json"
ARCHITECTURES: Final = ("llama", "mistral", "qwen2")
_DEFAULT_THETA: Final = 10_000.0
_MISTRAL_WINDOW: Final = 4_096  # what that architecture has where the key is absent; null means none


class HfModel(NamedTuple):
    description: ModelDescription
    notes: tuple[str, ...]


def read_model(values: dict[str, Any]) -> HfModel:
    """`values` as the file has them: where a key is null its meaning may differ from that of one that is absent."""
    table = Table(CONFIG, set_keys(values), reject=SourceRejected)
    architecture = _architecture(table)
    _refuse_what_is_not_ours(table, architecture)
    hidden = table.integer("hidden_size", 1, MAX_HIDDEN)
    heads = table.integer("num_attention_heads", 1, MAX_HEADS)
    if not table.has("head_dim") and hidden % heads:
        raise table.refusal("num_attention_heads", f"does not divide hidden_size {hidden}")
    head_dim = table.integer("head_dim", 2, MAX_HEAD_DIM) if table.has("head_dim") else hidden // heads
    positions = table.integer("max_position_embeddings", 1, MAX_CONTEXT)
    default_window = _MISTRAL_WINDOW if architecture == "mistral" and "sliding_window" not in values else None
    context, notes = _context(table, architecture, positions, default_window)
    description = {
        "architecture": architecture,
        "layout": LAYOUT,
        "dtype": "f32",
        "hidden_size": hidden,
        "intermediate_size": table.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        "layer_count": table.integer("num_hidden_layers", 1, MAX_LAYERS),
        "query_heads": heads,
        "kv_heads": table.integer("num_key_value_heads", 1, MAX_HEADS) if table.has("num_key_value_heads") else heads,
        "head_dim": head_dim,
        "vocab_size": table.integer("vocab_size", 1, MAX_VOCAB),
        "context_length": context,
        "norm_eps": table.number("rms_norm_eps", 1e-12, 1e-1) if table.has("rms_norm_eps") else 1e-6,
        "tied_embeddings": table.flag("tie_word_embeddings") if table.has("tie_word_embeddings") else False,
        "attention_bias": architecture == "qwen2",
        "activation": "silu",
        "rope": _rope(table, head_dim, positions),
    }
    return HfModel(parse_model(description, CONFIG), notes)


def _architecture(table: Table) -> str:
    architecture = table.choice("model_type", *ARCHITECTURES)
    if table.has("architectures"):
        table.only("architectures", [f"{architecture.capitalize()}ForCausalLM"])
    return architecture


def _refuse_what_is_not_ours(table: Table, architecture: str) -> None:
    if table.has("quantization_config"):
        raise table.refusal("quantization_config", "is set: import the model that was not quantised")
    for key, only in (("hidden_act", "silu"), ("mlp_bias", False), ("pretraining_tp", 1)):
        if table.has(key):
            table.only(key, only)
    if architecture != "qwen2" and table.has("attention_bias"):
        table.only("attention_bias", False)


def _context(
    table: Table, architecture: str, positions: int, default_window: int | None
) -> tuple[int, tuple[str, ...]]:
    """Within its sliding window a model attends to everything, so a context of that length needs no window."""
    is_used = architecture == "mistral" or (table.has("use_sliding_window") and table.flag("use_sliding_window"))
    window = table.integer("sliding_window", 1, MAX_CONTEXT) if table.has("sliding_window") else default_window
    if not is_used or window is None or window >= positions:
        return positions, ()
    return window, (f"the context is limited to the model's sliding window of {window} of {positions} tokens",)


def _rope(table: Table, head_dim: int, positions: int) -> dict[str, Any]:
    """Newer files have it all in `rope_parameters`; older ones `rope_theta` and `rope_scaling`."""
    if table.has("rope_parameters") and table.has("rope_scaling"):
        raise table.refusal("rope_scaling", "is set beside rope_parameters")
    key = "rope_parameters" if table.has("rope_parameters") else "rope_scaling"
    rope = table.table(key) if table.has(key) else Table(CONFIG, {}, key, SourceRejected)
    theta = _DEFAULT_THETA
    for holder in (table, rope):
        if holder.has("rope_theta"):
            theta = holder.number("rope_theta", 1.0, MAX_THETA)
    for holder in (table, rope):
        if holder.has("partial_rotary_factor"):
            holder.only("partial_rotary_factor", 1.0)
    return {"theta": theta, "rotary_dim": head_dim, "scaling": _scaling(rope, positions)}


def _scaling(rope: Table, positions: int) -> dict[str, Any]:
    kinds = [rope.choice(key, "default", "linear", "llama3", "yarn") for key in ("rope_type", "type") if rope.has(key)]
    if len(set(kinds)) > 1:
        raise rope.refusal("type", "differs from rope_type")
    kind = kinds[0] if kinds else "default"
    scaling: dict[str, Any] = {"kind": "none" if kind == "default" else kind}
    if kind != "default":
        scaling["factor"] = rope.number("factor", 1.0, MAX_FACTOR)
    if kind in ("llama3", "yarn"):
        original = "original_max_position_embeddings"
        has_original = kind == "llama3" or rope.has(original)
        scaling["original_context_length"] = rope.integer(original, 1, MAX_CONTEXT) if has_original else positions
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
    rope.finish()
    return scaling
