"""A row's results do not depend on its company, its chunks, its blocks or the threads: bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from unit.bones.images import FORMS, build
from unit.bones.sequences import Chunk, driver, tokens_of
from unit.bones.test_logits import KINDS, KV, SETS, instruction_set

from tie.bones import Sampling

Options = dict[str, Any]
LENGTH = 40
COMPANY = (2, 3, 5, 8, 9, 17, 33, 64)
# Chunks of attention end every 256 positions where blocks are whole panels, sooner where they are not; with several
# threads and few sequences they are computed apart.
LONG: dict[str, Options] = {
    "plain": {},
    "one key head of eight": {"query_heads": 8, "kv_heads": 1},
    "a window over a border": {"window": 270},
    "a window within": {"window": 40},
    "capped": {"attention_softcap": 2.0, "logit_softcap": 3.0},
}
LONG_AND_BLOCKS = [(kind, size) for kind in LONG for size in (16, 24)]
LONG_AND_BLOCKS += [("one key head of eight", size) for size in (4, 32, 64)]
LAST = 524


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("form", FORMS)
def test_chunks_do_not_matter(form: str, kv: str, isa: str) -> None:
    model, _, _ = build(form, hidden_size=96, intermediate_size=160)
    tokens = tokens_of(LENGTH)
    whole = driver(model, isa=instruction_set(isa), kv_dtype=kv).follow(tokens)
    for splits in ([1], [3, 5, 6], list(range(1, LENGTH)), [4, 8, 12, 36], [16, 32], [39]):
        assert np.array_equal(driver(model, seed=7, isa=isa, kv_dtype=kv).follow(tokens, splits), whole)


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("form", FORMS)
def test_company_does_not_matter(form: str, kv: str, isa: str) -> None:
    model, _, _ = build(form)
    tokens = tokens_of(13)
    options: Options = {"isa": instruction_set(isa), "kv_dtype": kv}
    alone = driver(model, **options).follow(tokens)
    for batch in COMPANY:
        for slot in {0, batch // 2, batch - 1}:
            shared = driver(model, seed=slot, block_count=300, threads=2, **options)
            assert np.array_equal(shared.follow(tokens, [9, 11, 12], company=batch - 1, slot=slot), alone)


@pytest.mark.parametrize("kind", KINDS)
def test_company_and_chunks_do_not_matter_to_any_kind_of_model(kind: str) -> None:
    model, description, _ = build("bf16", **KINDS[kind])
    tokens = tokens_of(30, vocab=description["vocab_size"])
    options: Options = {"kv_dtype": "bf16", "block_count": 300}
    alone = driver(model, **options).follow(tokens)
    assert np.array_equal(driver(model, threads=2, **options).follow(tokens, [7, 8, 20, 29], company=6, slot=3), alone)


@pytest.mark.parametrize(("kind", "block_size"), LONG_AND_BLOCKS)
def test_long_contexts_are_put_together_in_one_way(kind: str, block_size: int) -> None:
    model, _, _ = build("int8", layer_count=1, context_length=LAST, **LONG[kind])
    tokens = tokens_of(LAST)
    by_steps = [*range(254, 261), 262, 265, 299, 300, 301, 511, 512, 513, 519, 520, 521]
    for kv in KV:
        options: Options = {"kv_dtype": kv, "block_size_tokens": block_size, "block_count": LAST // block_size + 300}
        whole = driver(model, **options).follow(tokens)
        for threads in (1, 2, 3):
            split = driver(model, threads=threads, **options).follow(tokens, by_steps)
            assert np.array_equal(split, whole)
        for company in (1, 8):
            shared = driver(model, threads=2, **options).follow(tokens, [253, *by_steps], company=company, slot=1)
            assert np.array_equal(shared, whole)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("form", FORMS)
def test_a_reused_prefix_does_not_matter(form: str, kv: str, threads: int) -> None:
    model, _, _ = build(form, context_length=400)
    prefix = tokens_of(290)
    options: Options = {"kv_dtype": kv, "block_count": 100, "block_size_tokens": 8}
    run = driver(model, threads=threads, **options)
    run.follow(prefix)
    for sequence, blocks in enumerate((1, 31, 32, 33, 36), start=1):
        own = tokens_of(5, seed=sequence)
        alone = driver(model, seed=sequence, **options).follow([*prefix[: 8 * blocks], *own])
        run.share(0, blocks, sequence)
        assert np.array_equal(run.follow(own, sequence=sequence), alone[8 * blocks :])
    # All of them at once, and the first one goes on behind its own last block.
    rows = [Chunk(sequence, [3], None) for sequence in range(6)]
    apart = [driver(model, **options).follow([*prefix, 3])[-1]]
    for sequence, blocks in enumerate((1, 31, 32, 33, 36), start=1):
        own = tokens_of(5, seed=sequence)
        apart.append(driver(model, **options).follow([*prefix[: 8 * blocks], *own, 3])[-1])
    assert np.array_equal(run.logits(rows), np.stack(apart))


@given(
    splits=st.sets(st.integers(1, LENGTH - 1)),
    form=st.sampled_from(FORMS),
    kv=st.sampled_from(KV),
    kind=st.sampled_from(["plain", "one key head", "capped", "a window", "kinds"]),
    block_size=st.integers(1, 40),
    threads=st.integers(1, 3),
    company=st.integers(0, 63),
    slot=st.integers(0, 63),
)
@example({15, 16, 17, 33}, "f32", "f32", "one key head", 1, 3, 0, 0)
@settings(max_examples=40)
def test_nothing_matters(
    splits: set[int], form: str, kv: str, kind: str, block_size: int, threads: int, company: int, slot: int
) -> None:
    model, _, _ = build(form, **KINDS[kind] | {"query_heads": 6, "head_dim": 32, "rope": {"rotary_dim": 8}})
    tokens = tokens_of(LENGTH)
    options: Options = {"kv_dtype": kv, "block_size_tokens": block_size, "block_count": 3200 // block_size + 70}
    whole = driver(model, **options).follow(tokens)
    other = driver(model, seed=3, threads=threads, **options)
    found = other.follow(tokens, sorted(splits), company=company, slot=min(slot, company))
    assert np.array_equal(found, whole)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "bf16"])
def test_avx2_and_avx512_agree_bit_for_bit(form: str) -> None:
    """Save in bf16, which processors multiply in ways of their own."""
    tokens = tokens_of(LENGTH)
    model, _, _ = build(form)
    a, b = (driver(model, isa=instruction_set(isa)).follow(tokens, [30]) for isa in ("avx512", "avx2"))
    assert np.array_equal(a, b)


@pytest.mark.parametrize("slot", [0, 1, 3])
def test_a_seeded_row_draws_the_same_beside_unseeded_ones(slot: int) -> None:
    model, _, _ = build()
    seeded = Sampling(20.0, seed=11)

    def drawn(company: int, slot: int) -> list[int]:
        run, tokens, given = driver(model, block_count=200), tokens_of(6), []
        for step in range(8):
            rows = [Chunk(100 + i, tokens_of(2, seed=i), Sampling(20.0, seed=step * 97 + i)) for i in range(company)]
            rows.insert(slot, Chunk(0, tokens, seeded))
            tokens = [int(run.step(rows).tokens[slot])]
            given += tokens
        return given

    alone = drawn(0, 0)
    assert len(set(alone)) > 2
    assert drawn(3, slot) == alone
    assert drawn(31, slot) == alone


def test_a_recomputed_sequence_draws_the_same() -> None:
    model, _, _ = build()
    prompt = tokens_of(6)
    straight = driver(model)
    answer = [int(straight.step([Chunk(0, prompt, Sampling(20.0, seed=4))]).tokens[0])]
    for _ in range(6):
        answer.append(int(straight.step([Chunk(0, answer[-1:], Sampling(20.0, seed=4))]).tokens[0]))
    resumed = driver(model, seed=5)
    again = resumed.step([Chunk(0, prompt + answer[:5], Sampling(20.0, seed=4))]).tokens[0]
    assert again == answer[5]
