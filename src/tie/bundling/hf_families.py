"""What each architecture of Hugging Face means in our words: a table with one entry each, and no code for any.

A new member of the decoder family is a new entry here, unless its layers have an option that none has had before.
Defaults are those of the reference implementation: to it, a key that is absent and one that is null are not the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

LayerRule = Literal["full", "sliding", "upper", "alternating", "every_nth", "without_rope"]
"""Which layers have the sliding window, where `layer_types` does not say; see `hf_layers`."""

_NORMS: Final = {"input_layernorm.weight": "attn_norm.weight", "post_attention_layernorm.weight": "mlp_norm.weight"}
_FOUR_NORMS: Final = {
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "attn_post_norm.weight",
    "pre_feedforward_layernorm.weight": "mlp_norm.weight",
    "post_feedforward_layernorm.weight": "mlp_post_norm.weight",
}
_HEAD_NORMS: Final = {f"self_attn.{part}_norm.weight": f"attn.{part}_norm.weight" for part in "qk"}
_LINEAR: Final = {
    **{f"self_attn.{part}_proj.{kind}": f"attn.{part}.{kind}" for part in "qkvo" for kind in ("weight", "bias")},
    **{
        f"mlp.{part}_proj.{kind}": f"mlp.{part}.{kind}"
        for part in ("gate", "up", "down")
        for kind in ("weight", "bias")
    },
}


@dataclass(frozen=True, slots=True)
class Family:
    model_class: str
    layer_rule: LayerRule = "full"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    """Keys that may be there with one value, as what else they say is not ours to express."""
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Their flag → the flags of ours that it sets."""
    always: Mapping[str, bool] = field(default_factory=dict)
    """Flags of ours that every model of the family has set."""
    activation_key: str = "hidden_act"
    has_layer_types: bool = False
    window_flag: str | None = None
    """The key that turns the sliding window on; None where the window's length alone does."""
    has_partial_rope: bool = False
    rope_kinds: tuple[str, ...] = ("default", "linear", "llama3", "yarn")
    is_rope_by_layer_type: bool = False
    scales_embeddings: bool = False
    """By the square root of the hidden size."""
    softcaps: Mapping[str, str] = field(default_factory=dict)
    norms_add_one: bool = False
    """A norm multiplies by 1 + w, of which the file has w and we have the sum."""
    layer_names: Mapping[str, str] = field(default_factory=lambda: _NORMS | _LINEAR)
    fused: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Their matrix → the matrices of ours whose rows it has, one below the other."""
    text_key: str | None = None
    """Where a configuration of several models has that of the text model."""
    prefixes: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of tensor names → what they are where the text model is alone."""
    left_out: tuple[str, ...] = ()
    """Beginnings of the names of tensors that text does not pass through."""


_ATTENTION_BIAS: Final = {"attention_bias": ("qkv_bias", "output_bias")}
_BOTH_BIASES: Final = _ATTENTION_BIAS | {"mlp_bias": ("mlp_bias",)}
_LOGIT_SOFTCAP: Final = {"final_logit_softcapping": "logit_softcap"}
_SOFTCAPS: Final = _LOGIT_SOFTCAP | {"attn_logit_softcapping": "attention_softcap"}
_NO_BIASES: Final = {"attention_bias": False, "mlp_bias": False}
_GEMMA_DEFAULTS: Final = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "hidden_activation": "gelu_pytorch_tanh",
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}

_GEMMA_3: Final = Family(
    "Gemma3ForCausalLM",
    "every_nth",
    defaults=_GEMMA_DEFAULTS
    | {
        "num_attention_heads": 8,
        "max_position_embeddings": 131_072,
        "vocab_size": 262_208,
        "sliding_window_pattern": 6,
        "rope_theta": 1_000_000.0,
        "rope_local_base_freq": 10_000.0,
    },
    # it has a key for the softcap of attention too, but the reference implementation does not use it
    only={"mlp_bias": False, "use_bidirectional_attention": False, "attn_logit_softcapping": None},
    biases=_ATTENTION_BIAS,
    always={"qk_norm": True, "post_norms": True},
    activation_key="hidden_activation",
    has_layer_types=True,
    is_rope_by_layer_type=True,
    scales_embeddings=True,
    softcaps=_LOGIT_SOFTCAP,
    norms_add_one=True,
    layer_names=_FOUR_NORMS | _HEAD_NORMS | _LINEAR,
)

FAMILIES: Final[Mapping[str, Family]] = {
    "llama": Family("LlamaForCausalLM", biases=_BOTH_BIASES),
    "mistral": Family(
        "MistralForCausalLM",
        "sliding",
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
        only=_NO_BIASES,
    ),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        "upper",
        defaults={"num_key_value_heads": 32, "sliding_window": 4096, "max_window_layers": 28},
        only={"mlp_bias": False},
        always={"qkv_bias": True},
        has_layer_types=True,
        window_flag="use_sliding_window",
    ),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        "upper",
        defaults={"num_key_value_heads": 32, "head_dim": 128, "sliding_window": 4096, "max_window_layers": 28},
        only={"mlp_bias": False},
        biases=_ATTENTION_BIAS,
        always={"qk_norm": True},
        has_layer_types=True,
        window_flag="use_sliding_window",
        layer_names=_NORMS | _HEAD_NORMS | _LINEAR,
    ),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        "alternating",
        defaults=_GEMMA_DEFAULTS | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        only={"mlp_bias": False, "use_bidirectional_attention": False},
        biases=_ATTENTION_BIAS,
        always={"post_norms": True},
        activation_key="hidden_activation",
        has_layer_types=True,
        scales_embeddings=True,
        softcaps=_SOFTCAPS,
        norms_add_one=True,
        layer_names=_FOUR_NORMS | _LINEAR,
    ),
    "gemma3_text": _GEMMA_3,
    "gemma3": replace(
        _GEMMA_3,
        model_class="Gemma3ForConditionalGeneration",
        text_key="text_config",
        prefixes={
            "language_model.model.": "model.",
            "language_model.lm_head.": "lm_head.",
            "model.language_model.": "model.",
        },
        left_out=tuple(
            before + part for before in ("", "model.") for part in ("vision_tower.", "multi_modal_projector.")
        ),
    ),
    "smollm3": Family(
        "SmolLM3ForCausalLM",
        "without_rope",
        defaults={
            "num_key_value_heads": 4,
            "rope_theta": 2_000_000.0,
            "no_rope_layer_interval": 4,
            "tie_word_embeddings": True,
        },
        biases=_BOTH_BIASES,
        has_layer_types=True,
        window_flag="use_sliding_window",
    ),
    "phi3": Family(
        "Phi3ForCausalLM",
        "sliding",
        defaults={"rms_norm_eps": 1e-5},
        only=_NO_BIASES,
        has_partial_rope=True,
        rope_kinds=("default",),
        fused={
            "self_attn.qkv_proj.weight": ("attn.q.weight", "attn.k.weight", "attn.v.weight"),
            "mlp.gate_up_proj.weight": ("mlp.gate.weight", "mlp.up.weight"),
        },
    ),
}
