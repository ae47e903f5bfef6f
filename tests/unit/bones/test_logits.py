"""Logits against the reference: every kind of model, every stored form, every instruction set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.bones import reference
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
    "biases": {"attention_bias": True},
    "no groups": {"kv_heads": 4},
    "one key head": {"query_heads": 6, "kv_heads": 1},
    "wide heads": {"head_dim": 80},
    "narrow heads": {"head_dim": 6, "query_heads": 7, "kv_heads": 7},
    "heads of 128": {"head_dim": 128, "query_heads": 2, "kv_heads": 1},
    "partial rotary": {"rope": {"rotary_dim": 10, "theta": 500.0}},
    "odd widths": {"hidden_size": 50, "intermediate_size": 77, "vocab_size": 131},
    "one token vocabulary": {"vocab_size": 1},
} | {name: {"rope": {"scaling": scaling}} for name, scaling in ROPES.items()}
SETS = ("avx512", "avx2", "portable")


def instruction_set(name: str) -> str:
    """Skips a set that this machine lacks."""
    model, _, _ = build(layer_count=1)
    try:
        driver(model, isa=name)
    except BatchError as error:
        pytest.skip(str(error))
    return name


def relative(found: Any, wanted: Any) -> float:
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_agrees_with_the_reference(kind: str) -> None:
    model, description, weights = build(**KINDS[kind])
    tokens = tokens_of(45, vocab=description["vocab_size"])
    found = driver(model).follow(tokens, splits=[11, 12, 30])
    assert relative(found, reference.logits(description, weights, tokens)) < 2e-5


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("form", FORMS)
def test_every_stored_form_agrees_on_every_instruction_set(form: str, isa: str) -> None:
    model, description, weights = build(form, tied_embeddings=False, hidden_size=96, intermediate_size=160)
    tokens = tokens_of(40)
    found = driver(model, isa=instruction_set(isa)).follow(tokens, splits=[20, 37, 38, 39])
    assert relative(found, reference.logits(description, weights, tokens)) < 2e-5


@pytest.mark.parametrize("form", ["f32", "bf16"])
def test_rows_that_are_not_whole_blocks_are_read_in_both_float_forms(form: str) -> None:
    model, description, weights = build(form, **KINDS["odd widths"])
    tokens = tokens_of(9)
    assert relative(driver(model).follow(tokens), reference.logits(description, weights, tokens)) < 2e-5


@pytest.mark.parametrize("block_size", [1, 3, 16, 17, 64])
def test_any_block_size_gives_the_same_logits(block_size: int) -> None:
    model, description, weights = build()
    tokens = tokens_of(70)
    found = driver(model, block_count=80, block_size_tokens=block_size).follow(tokens, splits=[33, 34])
    assert relative(found, reference.logits(description, weights, tokens)) < 2e-5


def test_a_bf16_cache_is_close() -> None:
    model, description, weights = build()
    tokens = tokens_of(60)
    wanted = reference.logits(description, weights, tokens)
    error = relative(driver(model, kv_dtype="bf16").follow(tokens, splits=[50]), wanted)
    assert 1e-5 < error < 2e-2


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
        with pytest.raises(BatchError, match="must be avx512, avx2 or portable"):
            Engine(model, **options)
