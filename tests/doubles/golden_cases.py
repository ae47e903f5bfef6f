"""The tiny models whose logits the golden files hold: every architecture, and every option that a layer may have.

Numbers are chosen so that what a case is for decides its logits: windows and a scaling's original length are shorter
than the longer prompt, softcaps lie among the values that they cap, thetas and widths differ from the usual.
"""

from __future__ import annotations

from typing import Any, Final

from doubles.tiny_model import tiny_model

from tie.catalog.attention import GLOBAL, LOCAL, AttentionKind
from tie.catalog.description import ModelDescription
from tie.catalog.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling


def _model(**options: Any) -> ModelDescription:
    return tiny_model(vocab_size=160, **options)


# Positions of the golden prompts pass the scalings' original lengths, so that every branch of each is taken.
_PLAIN: Final = {
    "grouped": _model(),
    "tied": _model(kv_heads=4, head_dim=32, tied_embeddings=True),
    "one-kv-head": _model(hidden_size=96, kv_heads=1, head_dim=64),
    "head-80": _model(hidden_size=96, query_heads=6, kv_heads=3, head_dim=80, norm_eps=1e-6),
    "head-128": _model(query_heads=8, kv_heads=1, head_dim=128, layer_count=1),
    "nine-three": _model(
        hidden_size=144,
        query_heads=9,
        kv_heads=3,
        layer_count=4,
        rope=Rope(500_000.0, 16),
        tied_embeddings=True,
    ),
    "uneven-width": _model(hidden_size=72, intermediate_size=100),
    "linear": _model(rope=Rope(10_000.0, 16, LinearScaling(4.0))),
    "llama3": _model(head_dim=32, rope=Rope(500_000.0, 32, Llama3Scaling(8.0, 1.0, 4.0, 32))),
    "yarn": _model(head_dim=32, rope=Rope(10_000.0, 32, YarnScaling(4.0, 16, 32.0, 1.0))),
    "yarn-attention-factor": _model(head_dim=64, rope=Rope(100_000.0, 64, YarnScaling(8.0, 32, 16.0, 2.0, 1.25))),
    "mistral": _model(architecture="mistral", head_dim=32, rope=Rope(1_000_000.0, 32)),
    "qwen2": _model(architecture="qwen2", qkv_bias=True, tied_embeddings=True),
}

_GEMMA: Final = {
    "tied_embeddings": True,
    "activation": "gelu_tanh",
    "embedding_scale": 64**0.5,
    "attention_scale": 24**-0.5,
    "post_norms": True,
    "head_dim": 32,
    "norm_eps": 1e-6,
}
_ROPE: Final = Rope(10_000.0, 16)

_FAMILIES: Final = {
    "llama2": _model(kv_heads=4, norm_eps=1e-6),
    "llama-biases": _model(qkv_bias=True, output_bias=True, mlp_bias=True),
    "mistral-window": _model(architecture="mistral", window=24),
    "qwen2-upper-window": _model(
        architecture="qwen2",
        qkv_bias=True,
        layer_count=4,
        attention={GLOBAL: AttentionKind(None, _ROPE), LOCAL: AttentionKind(20, _ROPE)},
        layer_pattern=(GLOBAL, LOCAL, LOCAL, LOCAL),
    ),
    "qwen3": _model(architecture="qwen3", head_dim=32, qk_norm=True, tied_embeddings=True, rope=Rope(1_000_000.0, 32)),
    "qwen3-biases": _model(architecture="qwen3", head_dim=32, qk_norm=True, qkv_bias=True, output_bias=True),
    "gemma2": _model(
        architecture="gemma2",
        layer_count=3,
        attention={GLOBAL: AttentionKind(None, Rope(10_000.0, 32)), LOCAL: AttentionKind(24, Rope(10_000.0, 32))},
        layer_pattern=(LOCAL, GLOBAL),
        attention_softcap=3.0,
        logit_softcap=10.0,
        **_GEMMA,
    ),
    "gemma3": _model(
        architecture="gemma3_text",
        layer_count=8,
        intermediate_size=64,
        attention={
            GLOBAL: AttentionKind(None, Rope(1_000_000.0, 32, LinearScaling(8.0))),
            LOCAL: AttentionKind(16, Rope(10_000.0, 32)),
        },
        layer_pattern=(LOCAL, LOCAL, LOCAL, LOCAL, LOCAL, GLOBAL),
        qk_norm=True,
        **_GEMMA,
    ),
    "smollm3": _model(
        architecture="smollm3",
        layer_count=4,
        tied_embeddings=True,
        attention={GLOBAL: AttentionKind(None, Rope(5_000_000.0, 16)), "global_nope": AttentionKind()},
        layer_pattern=(GLOBAL, GLOBAL, GLOBAL, "global_nope"),
    ),
    "smollm3-window": _model(
        architecture="smollm3",
        layer_count=4,
        attention={GLOBAL: AttentionKind(None, _ROPE), "local_nope": AttentionKind(24)},
        layer_pattern=(GLOBAL, "local_nope"),
    ),
    "phi3": _model(architecture="phi3", head_dim=16, rope=Rope(10_000.0, 8)),
    "phi3-window": _model(architecture="phi3", kv_heads=4, rope=Rope(50_000.0, 12), window=24),
}

TINY_CASES: Final[dict[str, ModelDescription]] = _PLAIN | _FAMILIES
