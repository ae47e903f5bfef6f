"""The prefix cache on a scripted model whose KV are the tokens themselves: a wrong block shows as another answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from doubles.engine_harness import Answer, Harness
from doubles.scripted_engine import BLOCK, ECHO, NEVER_ENDS, VOCAB, ScriptedEngine
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.afm_runtime.paging.pool import BlockPool
from tie.afm_runtime.prefix.cache import PoolMemory, PrefixCache
from tie.afm_runtime.prefix.trie import Trie, TrieRejected
from tie.afm_runtime.prefix.warming import Warmed, Warming
from tie.api.afm_control.v1 import prefix_pb2

BLOCK_BYTES = BLOCK * 8
LONG = [10 + n % 700 for n in range(42)]
"""Ten whole blocks, and two tokens."""
BRANCH = [*LONG[:22], 900 - 1, *range(300, 320)]
"""Shares five whole blocks with LONG."""


def ids(tokens: Sequence[int]) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return np.array(tokens, np.int32)


def warmed(prompts: Sequence[Sequence[int]], pool_blocks: int = 64, blocks: int = 64) -> tuple[Trie, PoolMemory]:
    """As a first runtime leaves them."""
    trie, memory, model = Trie(BLOCK), np.zeros((pool_blocks, BLOCK_BYTES), np.uint8), ScriptedEngine(blocks)
    pool = BlockPool(blocks, model.zero_blocks)
    warming = Warming(trie, memory, pool, model)
    for prompt in prompts:
        warming.warm(ids(prompt))
    assert pool.free == blocks
    return trie, memory


def cached(
    harness: Harness, prompts: Sequence[Sequence[int]] = (LONG, BRANCH), resident: int = 32, **options: Any
) -> Harness:
    """With a second runtime's cache, read from what the first one kept."""
    trie, memory = warmed(prompts, **options)
    restored = Trie.from_message(trie.to_message(), block_size=BLOCK, vocab_size=VOCAB)
    memory.flags.writeable = False
    harness.scheduler.prefix = PrefixCache(restored, memory, harness.pool, harness.model, resident)
    return harness


def fed(harness: Harness, prompt: Sequence[int], **options: Any) -> tuple[Answer, int]:
    """The answer, and how many tokens went through the model for it."""
    counts: list[int] = []
    harness.model.on_step = lambda step: counts.append(len(step.token_ids))
    answer = harness.ask(prompt, **options)
    return answer, sum(counts)


def corrupted(change: Callable[[prefix_pb2.PrefixTrie], object]) -> prefix_pb2.PrefixTrie:
    message = warmed([LONG, BRANCH])[0].to_message()
    change(message)
    return message


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda m: setattr(m, "block_size_tokens", 8), "blocks have 8 tokens, this runtime's have 4"),
        (lambda m: setattr(m.nodes[3], "tokens", b"\0" * 12), "node 3 has 12 bytes"),
        (lambda m: setattr(m.nodes[3], "parent", 3), "node 3 comes before its parent"),
        (lambda m: setattr(m.nodes[3], "parent", -2), "node 3 comes before its parent"),
        (lambda m: setattr(m.nodes[0], "tokens", b"\xff" * 16), "node 0 holds an id outside the vocabulary of 1000"),
        (lambda m: m.nodes.append(m.nodes[4]), "node 15 is there twice"),
        (lambda m: setattr(m.nodes[13], "parent", 0), "its digest is another one"),
        (lambda m: setattr(m, "digest", b""), "its digest is another one"),
    ],
)
def test_metadata_that_describe_no_trie_are_rejected(
    change: Callable[[prefix_pb2.PrefixTrie], object], problem: str
) -> None:
    with pytest.raises(TrieRejected, match=problem):
        Trie.from_message(corrupted(change), block_size=BLOCK, vocab_size=VOCAB)


def test_what_the_pool_has_no_room_for_is_left_out_and_served_all_the_same() -> None:
    trie, memory = Trie(BLOCK), np.zeros((7, BLOCK_BYTES), np.uint8)
    model = ScriptedEngine(64)
    warming = Warming(trie, memory, BlockPool(64, model.zero_blocks), model)
    assert warming.warm(ids(LONG)) == Warmed(known=0, computed=7, left_out=3)
    assert warming.warm(ids(LONG)) == Warmed(known=7, computed=0, left_out=3)
    assert warming.warm(ids(BRANCH)) == Warmed(known=5, computed=0, left_out=5)
    harness = cached(Harness(), pool_blocks=7)
    answer, through_model = fed(harness, [*LONG, 7, 8], max_tokens=1)
    assert answer.request.cached == 7 * BLOCK
    assert through_model == 44 - 7 * BLOCK


def test_blocks_that_prompts_share_are_computed_once() -> None:
    trie, _ = warmed([LONG, BRANCH, LONG])
    assert len(trie) == 10 + 5
    assert trie.digest() == warmed([LONG, BRANCH])[0].digest()
    assert trie.digest() != warmed([BRANCH, LONG])[0].digest()


def test_only_what_follows_the_registered_prompt_and_its_last_block_is_computed() -> None:
    plain = Harness().ask([*LONG, 7, 8], max_tokens=8, temperature=1.0, seed=5)
    answer, through_model = fed(cached(Harness()), [*LONG, 7, 8], max_tokens=8, temperature=1.0, seed=5)
    assert answer.tokens == plain.tokens
    assert through_model == 2 + 2 + 7
    assert answer.usage is not None
    assert (answer.usage.cached_prefix, answer.usage.prompt) == (40, 44)


@pytest.mark.parametrize(
    ("prompt", "hits"),
    [(LONG[:40], 36), (LONG[:41], 40), (LONG[:3], 0), ([*LONG[:8], 999, *LONG[9:]], 8), (BRANCH, 40), ([5, *LONG], 0)],
)
def test_whole_blocks_are_matched_token_by_token_and_the_last_token_is_never_one_of_them(
    prompt: list[int], hits: int
) -> None:
    answer, _ = fed(cached(Harness()), prompt, max_tokens=3)
    assert answer.request.cached == hits
    assert answer.tokens == Harness().ask(prompt, max_tokens=3).tokens


def test_with_an_adapter_nothing_of_the_cache_is_used() -> None:
    answer, _ = fed(cached(Harness()), [*LONG, 7], max_tokens=3, adapter=1)
    assert answer.request.cached == 0
    assert answer.tokens == Harness().ask([*LONG, 7], max_tokens=3, adapter=1).tokens


def test_choices_share_the_cached_blocks_too() -> None:
    harness = cached(Harness())
    answer, through_model = fed(harness, [*LONG, 7, 8], max_tokens=3, choices=3, temperature=1.0)
    assert answer.tokens == Harness().ask([*LONG, 7, 8], max_tokens=3, choices=3, temperature=1.0).tokens
    assert through_model == 3 * 4 + 3 * 2, "each computes the last, partly filled block for itself"


def test_a_copy_is_read_through_once_while_there_is_room() -> None:
    harness = cached(Harness())
    for _ in range(3):
        fed(harness, [*LONG, 7], max_tokens=2)
    assert harness.scheduler.prefix is not None
    assert harness.scheduler.prefix.resident.loaded == 10
    assert harness.pool.free == 128 - 10


@pytest.mark.parametrize("resident", [0, 1, 4])
def test_a_small_resident_share_costs_reads_and_nothing_else(resident: int) -> None:
    harness = cached(Harness(), resident=resident)
    for _ in range(3):
        answer, through_model = fed(harness, [*LONG, 7], max_tokens=2)
        assert (answer.request.cached, through_model) == (40, 4)
    assert harness.scheduler.prefix is not None
    assert len(harness.scheduler.prefix.resident.blocks) == resident
    assert harness.pool.free == 128 - resident


def test_copies_make_way_for_requests_and_the_longest_unused_go_first() -> None:
    harness = cached(Harness(26))
    fed(harness, [*LONG, 7], max_tokens=2)
    fed(harness, [*BRANCH, 7], max_tokens=2)
    assert harness.pool.free == 26 - 15
    assert harness.ask([NEVER_ENDS] * 20, max_tokens=40).tokens == {0: [5] * 40}
    assert harness.scheduler.prefix is not None
    assert len(harness.scheduler.prefix.resident.blocks) == 26 - 15
    _, through_model = fed(harness, [*BRANCH, 7], max_tokens=2)
    assert through_model == 4 + 1
    assert harness.ask([NEVER_ENDS], max_tokens=103).tokens == {0: [5] * 103}, "the largest there can be"


def test_a_preempted_request_takes_its_cached_blocks_again() -> None:
    harness = cached(Harness(24))
    first = harness.submit([NEVER_ENDS] * 5, max_tokens=70)
    second = harness.submit([*LONG, 7], max_tokens=30)
    harness.run(first, second)
    assert harness.scheduler.preempted >= 1
    assert second.tokens == Harness().ask([*LONG, 7], max_tokens=30).tokens
    assert second.request.cached == 40


prompts = st.one_of(
    st.builds(lambda cut, rest: [*LONG[:cut], *rest], st.integers(1, 42), st.lists(st.integers(10, 800), max_size=9)),
    st.builds(lambda cut, rest: [*BRANCH[:cut], *rest], st.integers(1, 43), st.lists(st.integers(10, 800), max_size=9)),
    st.lists(st.integers(10, 800), min_size=1, max_size=40).map(lambda tokens: [ECHO, *tokens]),
)
arrivals = st.lists(
    st.tuples(prompts, st.integers(1, 30), st.integers(1, 3), st.integers(0, 6), st.booleans()), min_size=1, max_size=8
)


@settings(max_examples=80)
@given(arrivals, st.integers(26, 48), st.integers(0, 20))
def test_any_mixture_is_answered_as_without_the_cache_and_every_block_is_accounted_for(
    asked: list[tuple[list[int], int, int, int, bool]], blocks: int, resident: int
) -> None:
    harness = cached(Harness(blocks, max_queued=16), resident=resident)
    given_up: list[Answer] = []
    answers = []
    for seed, (prompt, count, choices, wait, leaves) in enumerate(asked):
        rules: dict[str, Any] = {"max_tokens": count, "choices": choices, "temperature": 1.0, "seed": seed}
        answer = harness.submit(prompt, **rules)
        harness.step(wait)
        if leaves:
            harness.engine.abort(answer.request)
            given_up.append(answer)
        else:
            answers.append((answer, prompt, rules))
    harness.run()
    assert harness.scheduler.prefix is not None
    assert harness.pool.free + len(harness.scheduler.prefix.resident.blocks) == blocks
    for answer, prompt, rules in answers:
        if answer.failure is None:
            assert answer.tokens == Harness().ask(prompt, **rules).tokens
        else:
            assert answer.kind == "TOO_LONG"
    assert all(answer.is_closed for answer in given_up)
