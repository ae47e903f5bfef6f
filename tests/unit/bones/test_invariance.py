"""A row's results do not depend on its company, its chunks, its blocks or the threads: bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.bones.images import FORMS, build
from unit.bones.sequences import Chunk, driver, tokens_of
from unit.bones.test_logits import SETS, instruction_set

from tie.bones import Sampling

LENGTH = 40


@pytest.mark.parametrize("isa", SETS)
@pytest.mark.parametrize("form", FORMS)
def test_chunks_do_not_matter(form: str, isa: str) -> None:
    model, _, _ = build(form, hidden_size=96, intermediate_size=160)
    tokens = tokens_of(LENGTH)
    whole = driver(model, isa=instruction_set(isa)).follow(tokens)
    for splits in ([1], [3, 5, 6], list(range(1, LENGTH)), [16, 32], [39]):
        assert np.array_equal(driver(model, seed=7, isa=isa).follow(tokens, splits), whole)


@given(splits=st.sets(st.integers(1, LENGTH - 1)), kv=st.sampled_from(["f32", "bf16"]), threads=st.integers(1, 3))
@settings(max_examples=15, deadline=None)
def test_any_chunks_and_threads_do_not_matter(splits: set[int], kv: str, threads: int) -> None:
    model, _, _ = build("int4_min", head_dim=24)
    tokens = tokens_of(LENGTH)
    whole = driver(model, kv_dtype=kv).follow(tokens)
    other = driver(model, seed=3, kv_dtype=kv, threads=threads).follow(tokens, sorted(splits))
    assert np.array_equal(other, whole)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("company", [1, 2, 3, 4, 5, 7, 31])
def test_company_does_not_matter(form: str, company: int) -> None:
    model, _, _ = build(form)
    tokens = tokens_of(12)
    alone = driver(model).follow(tokens, splits=[10, 11])
    shared = driver(model, block_count=300, threads=2)
    slot = company // 2
    others = [Chunk(row, tokens_of(3 + row, seed=row), None) for row in range(company + 1) if row != slot]
    found = []
    for part in (tokens[:10], tokens[10:11], tokens[11:]):
        chunks = [*others[:slot], Chunk(slot, part, None), *others[slot:]]
        first = sum(len(chunk.tokens) for chunk in chunks[:slot])
        found.append(shared.logits(chunks)[first : first + len(part)])
        others = [Chunk(chunk.sequence, [5], None) for chunk in others]
    assert np.array_equal(np.concatenate(found), alone)


def test_avx2_and_avx512_agree_bit_for_bit() -> None:
    tokens = tokens_of(LENGTH)
    for form in FORMS:
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
