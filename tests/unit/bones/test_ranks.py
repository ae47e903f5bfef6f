"""Tensor and pipeline ranks: refusals by name, the same invariance, one rank's numbers within rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from unit.bones.images import FORMS, build
from unit.bones.sequences import Chunk, driver, tokens_of
from unit.bones.test_logits import KINDS, KV

from tie.bones import BatchError, Sampling

Options = dict[str, Any]
SPLITS: dict[str, Options] = {
    "TP 2": {"tensor_parallel": 2},
    "PP 2": {"pipeline_parallel": 2},
    "TP 2 x PP 2": {"tensor_parallel": 2, "pipeline_parallel": 2},
}
UNEVEN: Options = {"query_heads": 9, "kv_heads": 3, "head_dim": 32, "layer_count": 3, "tied_embeddings": False}
LENGTH = 36


REFUSED: list[tuple[Options, Options, str]] = [
    ({}, {"tensor_parallel": 3}, "is 3, must be 1 to 2, the number of kv_heads"),
    ({}, {"tensor_parallel": 0}, "is 0, must be 1 to"),
    ({}, {"tensor_parallel": -1}, "is -1, must be at least 1"),
    ({}, {"tensor_parallel": 2**40}, "is 1099511627776, must be 1 to 64"),
    ({}, {"pipeline_parallel": 3}, "is 3, must be 1 to 2, the number of layers"),
    ({}, {"pipeline_parallel": 0}, "is 0, must be 1 to"),
    ({"layer_count": 33}, {"pipeline_parallel": 33, "tensor_parallel": 2}, "is 33, must be 1 to 32"),
    ({"intermediate_size": 32}, {"tensor_parallel": 2}, "is 2, must be 1 to 1, .* intermediate_size"),
    ({"vocab_size": 16}, {"tensor_parallel": 2}, "is 2, must be 1 to 1, .* vocab_size"),
    ({"head_dim": 24}, {"tensor_parallel": 2}, "is 2: keys of rank 1 would begin at element 24"),
    ({"query_heads": 2}, {"tensor_parallel": 2}, "is 2: queries of rank 1 would begin at element 16"),
]


@pytest.mark.parametrize(("changes", "split", "told"), REFUSED)
def test_what_cannot_be_split_is_refused_by_name(changes: Options, split: Options, told: str) -> None:
    model, _, _ = build(**changes)
    with pytest.raises(BatchError, match=f"engine: {next(iter(split))} {told}"):
        driver(model, **split)


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("changes", [{}, UNEVEN], ids=["even", "uneven"])
def test_company_chunks_and_threads_do_not_matter(changes: Options, split: str, form: str, kv: str) -> None:
    model, _, _ = build(form, **changes)
    tokens, options = tokens_of(LENGTH), SPLITS[split] | {"kv_dtype": kv, "block_count": 300}
    alone = driver(model, **options).follow(tokens)
    for batch, slot, threads, splits in ((1, 0, 2, [4, 5, 32]), (2, 1, 1, [9]), (9, 4, 2, [16, 35]), (64, 63, 1, [33])):
        shared = driver(model, seed=batch, threads=threads, **options)
        assert np.array_equal(shared.follow(tokens, splits, company=batch - 1, slot=slot), alone)


@pytest.mark.parametrize("kind", KINDS)
def test_stages_change_nothing(kind: str) -> None:
    """They only hand the residual stream on."""
    model, description, _ = build("bf16", **KINDS[kind])
    tokens = tokens_of(LENGTH, vocab=description["vocab_size"])
    assert np.array_equal(driver(model, pipeline_parallel=2).follow(tokens), driver(model).follow(tokens))


# Of the largest logit. Sums over ranks differ in the last bit; where activations are rounded, that moves a few of them
# by a whole step.
ROUNDING = {"f32": 5e-6, "bf16": 1e-2, "int8": 4e-2, "int4": 4e-2, "int4_min": 4e-2}


@pytest.mark.parametrize("changes", [{}, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("split", ["TP 2", "TP 2 x PP 2"])
def test_ranks_agree_with_one_within_rounding(split: str, form: str, changes: Options) -> None:
    decided = 0
    for seed in range(4):
        model, _, _ = build(form, seed, **changes)
        tokens = tokens_of(LENGTH, seed)
        one, many = driver(model).follow(tokens), driver(model, **SPLITS[split]).follow(tokens)
        bound = ROUNDING[form] * np.abs(one).max()
        assert np.abs(many - one).max() < bound
        assert form != "f32" or (many != one).any()
        lower, upper = np.sort(one)[:, -2:].T
        clear = upper - lower > 2 * bound
        assert (many.argmax(-1) == one.argmax(-1))[clear].all()
        decided += int(clear.sum())
    assert decided > LENGTH


@pytest.mark.parametrize("split", SPLITS)
def test_greedy_answers_are_one_ranks(split: str) -> None:
    model, _, _ = build(seed=1)
    answers = []
    for options in ({}, SPLITS[split]):
        run, tokens, answer = driver(model, **options), tokens_of(7), []
        for _ in range(20):
            tokens = run.step([Chunk(0, tokens)]).tokens.tolist()
            answer += tokens
        answers.append(answer)
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 3


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in ("narrow heads", "one key head", "heads of 128")]
)
def test_every_kind_of_model_that_can_be_split_agrees(kind: str) -> None:
    model, _, _ = build(**KINDS[kind] | {"vocab_size": 90})
    tokens = tokens_of(LENGTH)
    one, many = driver(model).follow(tokens), driver(model, **SPLITS["TP 2 x PP 2"]).follow(tokens)
    assert np.abs(many - one).max() < 2e-5 * np.abs(one).max()


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("split", SPLITS)
def test_a_sequence_continues_in_another_engine(split: str, kv: str) -> None:
    model, _, _ = build(**UNEVEN)
    tokens, options = tokens_of(21), SPLITS[split] | {"kv_dtype": kv}
    whole, first, second = (driver(model, seed=seed, **options) for seed in range(3))
    assert first.engine.kv_bytes_per_block == driver(model, kv_dtype=kv).engine.kv_bytes_per_block
    first.follow(tokens[:18])
    second.tables[0] = [second.free.pop() for _ in first.tables[0]]
    second.contexts[0] = 18
    second.engine.write_blocks(second.tables[0], first.engine.read_blocks(first.tables[0]))
    assert np.array_equal(second.follow(tokens[18:]), whole.follow(tokens)[18:])
    second.engine.zero_blocks(second.tables[0])
    assert not second.engine.read_blocks(second.tables[0]).any()


@pytest.mark.parametrize("split", SPLITS)
def test_one_bad_row_is_its_own_fault(split: str) -> None:
    model, _, _ = build()
    chunks = [Chunk(i, tokens_of(4 + i, seed=i), Sampling(1.0, seed=i)) for i in range(3)]
    clean = driver(model, **SPLITS[split]).step(chunks)
    found = driver(model, fault_injection=True, **SPLITS[split]).step(chunks, poison=(1, float("nan")))
    assert found.errors == [(1, "logits not finite")]
    assert found.tokens[[0, 2]].tolist() == clean.tokens[[0, 2]].tolist()


@pytest.mark.parametrize("split", SPLITS)
def test_a_refused_batch_leaves_the_ranks_in_step(split: str) -> None:
    model, _, _ = build()
    run = driver(model, **SPLITS[split])
    with pytest.raises(BatchError, match="token_ids"):
        run.follow([90])
    tokens = tokens_of(9)
    assert np.array_equal(run.follow(tokens, [4], sequence=1), driver(model, **SPLITS[split]).follow(tokens))
