"""A Hugging Face `config.json`, as our description. Whatever of it changes what the model computes and is not ours to
express is refused by name; the rest of the file (training, framework versions) is left alone.

What a key means to an architecture stands in `hf_families`; rotary embeddings and kinds of layers have readers of
their own.
"""

from typing import Any, Final, NamedTuple

from tie.bundling.errors import SourceRejected
from tie.bundling.hf_families import FAMILIES, Family
from tie.bundling.hf_files import set_keys
from tie.bundling.hf_layers import read_layers
from tie.bundling.hf_rope import Ropes
from tie.catalog.bounds import (
    MAX_CONTEXT,
    MAX_EPS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_SCALE,
    MAX_VOCAB,
    MIN_EPS,
    MIN_SCALE,
)
from tie.catalog.description import LAYOUT, ModelDescription, parse_model
from tie.catalog.tables import Table

CONFIG: Final = "config.json"
_ACTIVATIONS: Final = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_FLAGS: Final = ("qkv_bias", "output_bias", "mlp_bias", "qk_norm", "post_norms")


class HfModel(NamedTuple):
    description: ModelDescription
    family: Family
    notes: tuple[str, ...] = ()


def read_model(values: dict[str, Any]) -> HfModel:
    """`values` as the file has them: where a key is null its meaning may differ from that of one that is absent."""
    top = Table(CONFIG, set_keys(values), reject=SourceRejected)
    architecture = top.choice("model_type", *FAMILIES)
    family = FAMILIES[architecture]
    if top.has("architectures"):
        top.only("architectures", [family.model_class])
    _refuse_quantised(top)
    notes: tuple[str, ...] = ()
    prefix = ""
    if family.text_key is not None:
        values = _text_values(top, values, family.text_key)
        prefix = f"{family.text_key}."
        notes = ("only the text model is imported: images are left out",)
    known = _without_nulls({**family.defaults, **values})
    table = Table(CONFIG, known, prefix, SourceRejected)
    return HfModel(parse_model(_description(table, known, family, architecture), CONFIG), family, notes)


def _text_values(top: Table, values: dict[str, Any], key: str) -> dict[str, Any]:
    """Whether the head is tied is said by the whole model, where it says so."""
    top.table(key)
    shared = {name: values[name] for name in ("tie_word_embeddings",) if name in values}
    return {**values[key], **shared}


def _without_nulls(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def _description(table: Table, known: dict[str, Any], family: Family, architecture: str) -> dict[str, Any]:
    _refuse_what_is_not_ours(table, family)
    hidden = table.integer("hidden_size", 1, MAX_HIDDEN)
    heads = table.integer("num_attention_heads", 1, MAX_HEADS)
    layer_count = table.integer("num_hidden_layers", 1, MAX_LAYERS)
    positions = table.integer("max_position_embeddings", 1, MAX_CONTEXT)
    head_dim = _head_dim(table, hidden, heads)
    ropes = Ropes(table, CONFIG, family, head_dim, positions)
    return {
        "architecture": architecture,
        "layout": LAYOUT,
        "dtype": "f32",
        "hidden_size": hidden,
        "intermediate_size": table.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        "layer_count": layer_count,
        "query_heads": heads,
        "kv_heads": table.integer("num_key_value_heads", 1, MAX_HEADS) if table.has("num_key_value_heads") else heads,
        "head_dim": head_dim,
        "vocab_size": table.integer("vocab_size", 1, MAX_VOCAB),
        "context_length": positions,
        "norm_eps": table.number("rms_norm_eps", MIN_EPS, MAX_EPS) if table.has("rms_norm_eps") else 1e-6,
        "tied_embeddings": table.flag("tie_word_embeddings") if table.has("tie_word_embeddings") else False,
        **_options(table, family, hidden, head_dim),
        **read_layers(table, known, family, layer_count, ropes, positions),
    }


def _refuse_quantised(table: Table) -> None:
    if table.has("quantization_config"):
        raise table.refusal("quantization_config", "is set: import the model that was not quantised")


def _refuse_what_is_not_ours(table: Table, family: Family) -> None:
    _refuse_quantised(table)
    for key, value in ({"pretraining_tp": 1} | dict(family.only)).items():
        if table.has(key):
            table.only(key, value)


def _head_dim(table: Table, hidden: int, heads: int) -> int:
    if table.has("head_dim"):
        return table.integer("head_dim", 2, MAX_HEAD_DIM)
    if hidden % heads:
        raise table.refusal("num_attention_heads", f"does not divide hidden_size {hidden}")
    return hidden // heads


def _options(table: Table, family: Family, hidden: int, head_dim: int) -> dict[str, Any]:
    """What a layer may have or not, and the numbers that only some families have."""
    flags = dict.fromkeys(_FLAGS, False) | dict(family.always)
    for key, biases in family.biases.items():
        if table.has(key):
            flags |= dict.fromkeys(biases, table.flag(key))
    options: dict[str, Any] = dict(flags)
    key = family.activation_key
    options["activation"] = _ACTIVATIONS[table.choice(key, *_ACTIVATIONS)] if table.has(key) else "silu"
    if family.scales_embeddings:
        options["embedding_scale"] = hidden**0.5
    if "query_pre_attn_scalar" in family.defaults:
        scalar = table.number("query_pre_attn_scalar", 1.0, MAX_SCALE)
        if scalar != head_dim:
            options["attention_scale"] = scalar**-0.5
    for key, option in family.softcaps.items():
        if table.has(key):
            options[option] = table.number(key, MIN_SCALE, MAX_SCALE)
    return options
