"""The plain model of the tests against the reference: what the other tests compare with is itself compared."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from doubles.golden import TINY_CASES, TINY_SEED, tiny_prompts
from doubles.reference_model import logits
from doubles.tiny_model import tiny_weights

from tie.catalog.attention import LOCAL, AttentionKind
from tie.catalog.rope import Rope


@pytest.mark.parametrize("case", TINY_CASES)
def test_tiny_models_give_the_reference_s_logits(case: str) -> None:
    model = TINY_CASES[case]
    weights = tiny_weights(model, TINY_SEED)
    prompts = tiny_prompts(case)
    assert len(prompts) == 2
    for prompt in prompts:
        ours = logits(model, weights, prompt.tokens)[list(prompt.positions)]
        assert np.abs(ours - prompt.logits).max() <= 1e-5 * np.abs(prompt.logits).max()


def kind(case: str, name: str, **changes: Any) -> dict[str, Any]:
    """The case's attention with one kind changed."""
    kinds = TINY_CASES[case].attention
    return {"attention": {**kinds, name: replace(kinds[name], **changes)}}


@pytest.mark.parametrize(
    ("case", "changes"),
    [
        ("linear", kind("linear", "global", rope=Rope(10_000.0, 16))),
        ("llama3", kind("llama3", "global", rope=Rope(500_000.0, 32))),
        ("yarn", kind("yarn", "global", rope=Rope(10_000.0, 32))),
        ("llama-biases", {"qkv_bias": False}),
        ("llama-biases", {"output_bias": False}),
        ("llama-biases", {"mlp_bias": False}),
        ("mistral-window", kind("mistral-window", "global", window=None)),
        ("mistral-window", kind("mistral-window", "global", window=25)),
        ("qwen2-upper-window", kind("qwen2-upper-window", LOCAL, window=None)),
        ("qwen2-upper-window", {"layer_pattern": (LOCAL, "global")}),
        ("qwen3", {"qk_norm": False}),
        ("gemma2", {"attention_softcap": None}),
        ("gemma2", {"logit_softcap": None}),
        ("gemma2", {"attention_scale": None}),
        ("gemma2", {"embedding_scale": 1.0}),
        ("gemma2", {"activation": "silu"}),
        ("gemma2", {"post_norms": False}),
        ("gemma2", {"layer_pattern": ("global", LOCAL)}),
        ("gemma3", {"qk_norm": False}),
        ("gemma3", {"attention_scale": None}),
        ("gemma3", kind("gemma3", LOCAL, window=None)),
        ("gemma3", kind("gemma3", LOCAL, rope=Rope(1_000_000.0, 32))),
        ("gemma3", kind("gemma3", "global", rope=Rope(1_000_000.0, 32))),
        (
            "smollm3",
            {"attention": {**TINY_CASES["smollm3"].attention, "global_nope": AttentionKind(None, Rope(5e6, 16))}},
        ),
        ("smollm3-window", kind("smollm3-window", "local_nope", window=None)),
        ("phi3", kind("phi3", "global", rope=Rope(10_000.0, 16))),
    ],
)
def test_what_a_case_is_for_decides_its_logits(case: str, changes: dict[str, Any]) -> None:
    """Leaving it out is seen at ten times the bound that Bones is held to."""
    model = TINY_CASES[case]
    weights = tiny_weights(model, TINY_SEED)
    prompt = tiny_prompts(case)[1]
    kept = {
        name: values
        for name, values in weights.items()
        if not any(name.endswith(f"{part}.bias") for flag in changes for part in _BIASES.get(flag, ()))
    }
    ours = logits(replace(model, **changes), kept, prompt.tokens)[list(prompt.positions)]
    assert np.abs(ours - prompt.logits).max() >= 1e-2 * np.abs(prompt.logits).max()


_BIASES = {"qkv_bias": ("attn.q", "attn.k", "attn.v"), "output_bias": ("attn.o",), "mlp_bias": ("gate", "up", "down")}
