"""The KV cache as blocks: copied, zeroed, moved between engines."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from unit.bones.images import build
from unit.bones.sequences import Chunk, driver, tokens_of

from tie.bones import Model


@pytest.fixture(scope="module")
def model() -> Model:
    return build()[0]


@pytest.mark.parametrize("kv", ["f32", "bf16"])
def test_a_sequence_continues_in_another_engine(model: Model, kv: str) -> None:
    tokens = tokens_of(21)
    whole = driver(model, kv_dtype=kv).follow(tokens)
    first = driver(model, kv_dtype=kv)
    first.follow(tokens[:18])
    second = driver(model, seed=9, kv_dtype=kv)
    second.tables[0] = [40, 3, 17, 8, 21]
    second.free = [block for block in second.free if block not in second.tables[0]]
    second.contexts[0] = 18
    second.engine.write_blocks(second.tables[0], first.engine.read_blocks(first.tables[0]))
    assert np.array_equal(second.follow(tokens[18:]), whole[18:])


def test_zeroed_blocks_hold_nothing_and_others_are_untouched(model: Model) -> None:
    run = driver(model)
    run.follow(tokens_of(9))
    a, b, c = run.tables[0]
    kept = run.engine.read_blocks([a, c])
    assert run.engine.read_blocks([b]).any()
    run.engine.zero_blocks([b])
    assert not run.engine.read_blocks([b]).any()
    assert np.array_equal(run.engine.read_blocks([a, c]), kept)


def test_bytes_come_back_as_they_were_written(model: Model) -> None:
    engine = driver(model).engine
    content = np.random.default_rng(0).integers(0, 256, 2 * engine.kv_bytes_per_block, np.uint8)
    engine.write_blocks([5, 2], content.tobytes())
    assert np.array_equal(engine.read_blocks([2, 5]), np.roll(content, engine.kv_bytes_per_block))
    assert engine.read_blocks([]).shape == (0,)


def test_what_a_block_held_before_does_not_matter(model: Model) -> None:
    """Slots beyond a sequence's length are never read, not even as NaN times nothing."""
    clean, dirty = driver(model), driver(model)
    size = dirty.engine.kv_bytes_per_block
    dirty.engine.write_blocks(range(64), b"\xff" * (64 * size))
    tokens = tokens_of(11)
    assert np.array_equal(dirty.follow(tokens, [2, 3]), clean.follow(tokens, [2, 3]))


def test_threads_of_python_take_turns(model: Model) -> None:
    run = driver(model, threads=2)
    batches = [run.batch([Chunk(i, tokens_of(6, seed=i), None)], want_all_logits=True) for i in range(4)]
    found: dict[int, object] = {}

    def work(index: int) -> None:
        for _ in range(5):
            found[index] = run.engine.forward(batches[index]).logits

    workers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for i in range(4):
        assert np.array_equal(found[i], driver(model).follow(tokens_of(6, seed=i)))
