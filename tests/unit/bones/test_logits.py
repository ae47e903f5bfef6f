"""Logits against the reference: every kind of model, every stored form, every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.bones import reference
from unit.bones.arithmetic import Arithmetic, Forms
from unit.bones.images import FORMS, build
from unit.bones.sequences import Chunk, driver, tokens_of

from tie.bones import BatchError, Engine

ROPES: dict[str, dict[str, Any]] = {
    "linear": {"kind": "linear", "factor": 4.0},
    "llama3": {
        "kind": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_context_length": 32,
    },
    "yarn": {"kind": "yarn", "factor": 4.0, "original_context_length": 32, "beta_fast": 8.0, "beta_slow": 1.0},
    "yarn with factor": {
        "kind": "yarn",
        "factor": 4.0,
        "original_context_length": 32,
        "beta_fast": 8.0,
        "beta_slow": 1.0,
        "attention_factor": 0.75,
    },
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "untied": {"tied_embeddings": False},
    "biases": {"qkv_bias": True},
    "no groups": {"kv_heads": 4},
    "one key head": {"query_heads": 6, "kv_heads": 1},
    "wide heads": {"head_dim": 80},
    "narrow heads": {"head_dim": 6, "query_heads": 7, "kv_heads": 7},
    "heads of 128": {"head_dim": 128, "query_heads": 2, "kv_heads": 1},
    "partial rotary": {"rope": {"rotary_dim": 10, "theta": 500.0}},
    "odd widths": {"hidden_size": 50, "intermediate_size": 77, "vocab_size": 131},
    "one token vocabulary": {"vocab_size": 1},
    "all biases": {"qkv_bias": True, "output_bias": True, "mlp_bias": True},
    "gelu": {"activation": "gelu_tanh"},
    "scaled": {"embedding_scale": 8.0, "attention_scale": 0.4},
    "capped": {"attention_softcap": 1.5, "logit_softcap": 2.0},
    "head norms": {"qk_norm": True},
    "post norms": {"post_norms": True},
    "a window": {"window": 7},
    "a window of one": {"window": 1},
    "no positions": {"attention": {"global": {}}},
    "kinds": {
        "layer_count": 5,
        "layer_pattern": ["near", "near", "far", "blind"],
        "attention": {
            "near": {"window": 12, "rope": {"theta": 100.0, "rotary_dim": 16}},
            "far": {"rope": {"theta": 1e6, "rotary_dim": 8}},
            "blind": {},
        },
    },
    "everything": {
        "activation": "gelu_tanh",
        "embedding_scale": 8.0,
        "attention_scale": 0.2,
        "attention_softcap": 5.0,
        "logit_softcap": 10.0,
        "window": 20,
        **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias", "qk_norm", "post_norms"), True),
    },
}
KINDS |= {name: {"rope": {"scaling": scaling}} for name, scaling in ROPES.items()}
SETS = ("amx", "avx512", "avx2", "portable")


def instruction_set(name: str) -> str:
    """Skips a set that this machine lacks."""
    model, _, _ = build(layer_count=1)
    try:
        driver(model, isa=name)
    except BatchError as error:
        pytest.skip(str(error))
    return name


KV = ("f32", "bf16")
# Where reference and engine differ by a last bit beside a tie, they round apart, and what follows differs by about a
# rounding. Such flips are few; elsewhere the two agree to f32's own precision. Both are relative to the largest logit.
USUAL, FLIPPED = 1e-6, 4e-2


def apart(found: Any, wanted: Any) -> Any:
    """The largest difference of each row."""
    return np.abs(found - wanted).max(axis=-1) / np.abs(wanted).max()


def differences(forms: Forms, kv: str, isa: str | None = None, seeds: int = 4, **changes: Any) -> Any:
    """Of every row of several random models."""
    found = []
    for seed in range(seeds):
        model, description, weights = build(forms, seed, **changes)
        tokens = tokens_of(36, seed, vocab=description["vocab_size"])
        run = driver(model, isa=isa, kv_dtype=kv)
        numbers = Arithmetic(forms, kv, run.engine.block_size_tokens)
        wanted = reference.logits(description, weights, tokens, numbers)
        found.append(apart(run.follow(tokens, splits=[11, 12, 30]), wanted))
    return np.concatenate(found)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_agrees_with_the_reference(kind: str) -> None:
    assert differences("f32", "f32", seeds=2, **KINDS[kind]).max() < 2e-5


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_agrees_where_everything_is_bf16(kind: str) -> None:
    found = differences("bf16", "bf16", **KINDS[kind])
    assert np.quantile(found, 0.25) < USUAL
    assert found.max() < FLIPPED


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("form", FORMS)
def test_every_stored_form_agrees_on_every_instruction_set(form: str, kv: str, isa: str) -> None:
    found = differences(form, kv, instruction_set(isa), tied_embeddings=False, hidden_size=96, intermediate_size=160)
    assert np.median(found) < USUAL
    assert found.max() < (2e-5 if form == kv == "f32" else FLIPPED)


def of_many_forms(matrix: str) -> str:
    """As importers mix them: matrices that read the same activations want them in different forms."""
    forms = {"attn.q": "int4", "attn.k": "bf16", "attn.v": "f32", "mlp.gate": "int4_min", "mlp.up": "bf16"}
    return next((form for stem, form in forms.items() if stem in matrix), "int8")


def test_forms_may_be_mixed_within_a_model() -> None:
    found = differences(of_many_forms, "f32", tied_embeddings=False)
    assert np.median(found) < USUAL
    assert found.max() < FLIPPED


@pytest.mark.parametrize(("forms", "kv", "low", "high"), [
    ("bf16", "f32", 2e-3, 1e-2),
    ("f32", "bf16", 2e-3, 1e-2),
    ("int8", "f32", 1e-2, 3.5e-2),
    ("int4", "f32", 1e-2, 3.5e-2),
    ("int4_min", "f32", 1e-2, 3.5e-2),
])  # fmt: skip
@pytest.mark.parametrize("hidden", [64, 256])
def test_rounded_activations_are_this_far_from_exact_ones(
    forms: Forms, kv: str, low: float, high: float, hidden: int
) -> None:
    """Over all logits, relative to their norm; the weights are what their form stands for on both sides."""
    sizes = {"hidden_size": hidden, "intermediate_size": 2 * hidden, "head_dim": hidden // 4}
    for seed in range(128 // hidden or 1):
        model, description, weights = build(forms, seed, **sizes)
        tokens = tokens_of(24, seed)
        exact = reference.logits(description, weights, tokens)
        error = np.linalg.norm(driver(model, kv_dtype=kv).follow(tokens) - exact) / np.linalg.norm(exact)
        assert low < error < high


@pytest.mark.parametrize(("block_size", "length"), [(1, 90), (3, 90), (16, 300), (17, 300), (64, 300)])
@pytest.mark.parametrize("kv", KV)
def test_any_block_size_agrees(block_size: int, length: int, kv: str) -> None:
    """Up to several chunks of attention."""
    found = []
    for seed in range(3):
        model, description, weights = build(seed=seed, context_length=length, layer_count=1)
        tokens = tokens_of(length, seed)
        run = driver(model, block_count=90, block_size_tokens=block_size, kv_dtype=kv)
        wanted = reference.logits(description, weights, tokens, Arithmetic("f32", kv, block_size))
        found.append(apart(run.follow(tokens, splits=[33, 34]), wanted))
    assert np.quantile(found, 0.25) < USUAL
    assert np.max(found) < (2e-5 if kv == "f32" else 2e-3)


def test_last_logits_and_all_logits_are_the_same_numbers() -> None:
    model, _, _ = build()
    chunks = [Chunk(0, tokens_of(5)), Chunk(1, tokens_of(3, seed=1), None)]
    everything = driver(model).logits(chunks)
    last = driver(model).step(chunks, want_logits=True)
    assert last.logits is not None
    assert np.array_equal(last.logits, everything[[4, 7]])
    assert last.tokens.tolist() == [int(everything[4].argmax()), -1]


def test_the_environment_names_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _, _ = build()
    options: dict[str, Any] = {"block_count": 1, "block_size_tokens": 1, "kv_dtype": "f32", "threads": 1}
    monkeypatch.setenv("BONES_ISA", "portable")
    assert Engine(model, **options).isa == "portable"
    for name in ("", "sse9", "AVX2"):
        monkeypatch.setenv("BONES_ISA", name)
        with pytest.raises(BatchError, match="must be amx, avx512, avx2 or portable"):
            Engine(model, **options)
