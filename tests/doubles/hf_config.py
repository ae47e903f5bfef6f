"""A model's `config.json`, in the words of its architecture: as files were written before rotary embeddings had a
table of their own (`is_old`), and as the library's fifth version takes them."""

from __future__ import annotations

from typing import Any

from tie.catalog.description import ModelDescription

_CLASSES = {
    "qwen2": "Qwen2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
_TYPES = {True: "sliding_attention", False: "full_attention"}


def config_of(model: ModelDescription, *, is_old: bool = True) -> dict[str, Any]:
    name = model.architecture
    return {
        "architectures": [_CLASSES.get(name, f"{name.capitalize()}ForCausalLM")],
        "model_type": name,
        "hidden_size": model.hidden_size,
        "intermediate_size": model.intermediate_size,
        "num_hidden_layers": model.layer_count,
        "num_attention_heads": model.query_heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.context_length,
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tied_embeddings,
        "eos_token_id": 2,
        **_options(model),
        **_windows(model, is_old),
        **(_old_rope(model) if is_old else _new_rope(model)),
    }


def _options(model: ModelDescription) -> dict[str, Any]:
    activation = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}[model.activation]
    if model.architecture.startswith("gemma"):
        return {
            "hidden_activation": activation,
            "query_pre_attn_scalar": round(model.score_scale**-2),
            "attn_logit_softcapping": model.attention_softcap,
            "final_logit_softcapping": model.logit_softcap,
        }
    options: dict[str, Any] = {"hidden_act": activation}
    if model.architecture in ("llama", "qwen3", "smollm3"):
        options["attention_bias"] = model.qkv_bias
    if model.architecture in ("llama", "smollm3"):
        options["mlp_bias"] = model.mlp_bias
    return options


def _windows(model: ModelDescription, is_old: bool) -> dict[str, Any]:
    """Older files say by a rule which layers have the window, newer ones layer by layer."""
    kinds = [model.kind_of(layer) for layer in range(model.layer_count)]
    is_local = [kind.window is not None for kind in kinds]
    window = next((kind.window for kind in kinds if kind.window is not None), None)
    keys: dict[str, Any] = {"sliding_window": window}
    match model.architecture:
        case "llama":
            return {}
        case "mistral" | "phi3":
            return keys
        case "qwen2" | "qwen3":
            first = is_local.index(True) if window is not None else model.layer_count
            keys |= {"use_sliding_window": window is not None, "max_window_layers": first}
        case "gemma3_text":
            keys |= {"sliding_window_pattern": is_local.index(False) + 1} if is_old else {}
        case "smollm3":
            keys |= {"use_sliding_window": window is not None}
            keys |= {"no_rope_layers": [int(kind.rope is not None) for kind in kinds]}
    return keys if is_old else keys | {"layer_types": [_TYPES[local] for local in is_local]}


def _old_rope(model: ModelDescription) -> dict[str, Any]:
    ropes = _ropes(model)
    rope = ropes["full_attention"]
    keys = {
        "rope_theta": rope.pop("rope_theta"),
        "torch_dtype": "float32",
        "transformers_version": "4.40.0",
        "rope_scaling": None,
    }
    if "partial_rotary_factor" in rope:
        keys["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    if rope.pop("rope_type") != "default":
        keys["rope_scaling"] = rope | {"rope_type": _ropes(model)["full_attention"]["rope_type"]}
    if model.architecture == "gemma3_text":
        keys["rope_local_base_freq"] = ropes["sliding_attention"]["rope_theta"]
    return keys


def _new_rope(model: ModelDescription) -> dict[str, Any]:
    ropes = _ropes(model)
    by_type = model.architecture == "gemma3_text"
    return {"rope_parameters": ropes if by_type else ropes["full_attention"]}


def _ropes(model: ModelDescription) -> dict[str, dict[str, Any]]:
    """By the type of layer; both types have an entry even where the model has one only."""
    found: dict[str, dict[str, Any]] = {}
    for kind in model.to_table()["attention"].values():
        if "rope" in kind:
            found[_TYPES["window" in kind]] = _rope(model, kind["rope"])
    some = next(iter(found.values()))
    return {name: dict(found.get(name, some)) for name in _TYPES.values()}


def _rope(model: ModelDescription, rope: dict[str, Any]) -> dict[str, Any]:
    scaling = rope["scaling"]
    keys = {"rope_theta": rope["theta"], "rope_type": "default"}
    if scaling["kind"] != "none":
        keys |= {key: value for key, value in scaling.items() if key != "kind"} | {"rope_type": scaling["kind"]}
    if "original_context_length" in keys:
        keys["original_max_position_embeddings"] = keys.pop("original_context_length")
    if model.architecture == "phi3":
        keys["partial_rotary_factor"] = rope["rotary_dim"] / model.head_dim
    return keys
