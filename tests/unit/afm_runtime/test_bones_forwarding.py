"""The engine loop over real Bones on a tiny random model: what the scripted one promises must hold there too."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles.engine_harness import Answer
from doubles.scripted_engine import SpelledTokens
from doubles.tiny_adapter import add_adapters, tiny_pairs
from doubles.tiny_model import TEST_TRUSTED, make_tiny_bundle, tiny_model

from tie import bones
from tie.afm_runtime.attach import attach, block_bytes
from tie.afm_runtime.config import AfmRuntimeConfig
from tie.afm_runtime.decoding.stops import StopRules
from tie.afm_runtime.engine import Engine
from tie.afm_runtime.forwarding import NO_ADAPTER, SamplingRules
from tie.afm_runtime.paging.pool import BlockPool
from tie.afm_runtime.scheduling.limits import Limits
from tie.afm_runtime.scheduling.scheduler import Scheduler
from tie.afm_runtime.sequence import Admitted, Request
from tie.afm_runtime.serving import Attached
from tie.catalog import open_bundle
from tie.catalog.errors import CatalogError
from tie.contracts.errors import ConfigError
from tie.servicekit.config import NodeConfig

PROMPT = [5 + n * 7 % 200 for n in range(37)]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("bundle") / "tiny"
    make_tiny_bundle(path, seed=1)
    yield path
    gc.collect()  # models hold descriptors, and other modules count theirs


@pytest.fixture
def node(bundle: Path, tmp_path: Path) -> NodeConfig:
    keys = tmp_path / "keys"
    keys.write_text("".join(f"{key.hex()}\n" for key in TEST_TRUSTED))
    return NodeConfig(run_dir=str(tmp_path), bundle_dir=str(bundle), trusted_keys_file=str(keys))


def runtime(**settings: Any) -> AfmRuntimeConfig:
    return AfmRuntimeConfig(triton_dir="/nonexistent", python="/nonexistent", **{"block_count": 64, **settings})


class Loop:
    def __init__(self, attached: Attached, budget: int = 64) -> None:
        self.pool = BlockPool(attached.block_count, attached.forwarding.zero_blocks)
        limits = Limits(attached.limits.block_size, budget, 8, 8)
        self.scheduler = Scheduler(self.pool, limits, SpelledTokens())
        self.engine = Engine(attached.forwarding, self.scheduler, lambda: None, lambda: None)

    def submit(
        self, prompt: Sequence[int], *, count: int = 12, min_tokens: int = 0, adapter: int = NO_ADAPTER, **rules: Any
    ) -> Answer:
        answer = Answer()
        ending = frozenset(rules.pop("ending_ids", ()))
        admitted = Admitted(
            np.array(prompt, np.int32), SamplingRules(**rules), StopRules(count, min_tokens, ending, ()), 1,
            time.monotonic() + 60, adapter,
        )  # fmt: skip
        answer.request = Request(admitted, answer)
        self.engine.submit(answer.request)
        return answer

    def run(self, *answers: Answer) -> None:
        while not all(answer.is_closed for answer in answers):
            assert self.engine.take_messages(0)
            self.engine.step()
            self.scheduler.check()
        assert not any(answer.failure for answer in answers)


def alone(node: NodeConfig, prompt: Sequence[int] = PROMPT, **options: Any) -> list[int]:
    loop = Loop(attach(node, runtime()))
    answer = loop.submit(prompt, **options)
    loop.run(answer)
    return answer.tokens[0]


def test_a_bundle_that_nobody_trusts_is_not_attached(node: NodeConfig, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("00" * 32 + "\n")
    with pytest.raises(CatalogError):
        attach(node, runtime())


def test_a_cache_without_room_for_a_block_is_refused(node: NodeConfig) -> None:
    with pytest.raises(ConfigError, match="less than one block"):
        attach(node, runtime(block_count=0, kv_bytes=10))


def test_the_budget_in_bytes_counts_blocks_as_bones_does(node: NodeConfig, bundle: Path) -> None:
    with open_bundle(bundle, trusted_keys=TEST_TRUSTED) as opened:
        described = opened.description
        engine = bones.Engine(
            bones.Model(described.model.to_json(), opened.weight_fds()),
            block_count=1, block_size_tokens=described.kv.block_size_tokens, kv_dtype=described.kv.dtype, threads=1,
        )  # fmt: skip
    assert block_bytes(described) == engine.kv_bytes_per_block
    size = 10 * block_bytes(described)
    assert attach(node, runtime(block_count=0, kv_bytes=size + 1)).block_count == 10


def test_what_is_served_is_what_the_bundle_says(node: NodeConfig, bundle: Path) -> None:
    attached = attach(node, runtime())
    with open_bundle(bundle, trusted_keys=TEST_TRUSTED) as opened:
        assert attached.serves.bundle_identity == opened.identity
        assert attached.serves.eos_ids == set(opened.description.tokenizer.eos_token_ids)
    assert attached.serves.has_token_bytes
    assert isinstance(attached.token_bytes[40], bytes)


@pytest.mark.parametrize("budget", [8, 9, 64])
@pytest.mark.parametrize("rules", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "seeded"])
def test_neither_chunks_nor_mates_change_a_token(node: NodeConfig, budget: int, rules: dict[str, Any]) -> None:
    loop = Loop(attach(node, runtime()), budget)
    mates = [loop.submit([9 + n] * (11 * n + 1), temperature=1.0, seed=n) for n in range(3)]
    answer = loop.submit(PROMPT, **rules)
    late = loop.submit(PROMPT[:5])
    loop.run(answer, late, *mates)
    assert answer.tokens[0] == alone(node, **rules)


@pytest.mark.parametrize("rules", [{}, {"temperature": 0.8, "seed": 7, "repetition_penalty": 1.3}], ids=str)
def test_a_preempted_request_goes_on_with_the_same_tokens(node: NodeConfig, rules: dict[str, Any]) -> None:
    loop = Loop(attach(node, runtime(block_count=9)))
    older, answer = loop.submit([9] * 40, count=60), loop.submit(PROMPT, count=50, **rules)
    loop.run(older, answer)
    assert loop.scheduler.preempted
    assert answer.tokens[0] == alone(node, count=50, **rules)
    assert older.tokens[0] == alone(node, [9] * 40, count=60)


@pytest.fixture(scope="module")
def adapted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("adapted") / "tiny"
    make_tiny_bundle(path, seed=1)
    add_adapters(path, {"terse": tiny_pairs(tiny_model(), 1), "formal": tiny_pairs(tiny_model(), 2, rank=40)})
    yield path
    gc.collect()


def test_requests_with_and_without_adapters_share_steps_and_change_no_token(node: NodeConfig, adapted: Path) -> None:
    plain = alone(node)
    node = replace(node, bundle_dir=str(adapted))
    attached = attach(node, runtime())
    assert attached.serves.adapters == ("formal", "terse")
    expected = {adapter: alone(node, adapter=adapter) for adapter in (NO_ADAPTER, 0, 1)}
    assert expected[NO_ADAPTER] == plain
    loop = Loop(attached, budget=16)
    answers = {adapter: loop.submit(PROMPT, adapter=adapter) for adapter in (1, NO_ADAPTER, 0)}
    loop.run(*answers.values())
    assert {adapter: answer.tokens[0] for adapter, answer in answers.items()} == expected
    assert len({tuple(tokens) for tokens in expected.values()}) == 3


def test_warming_adapters_needs_no_more_blocks_than_there_are(node: NodeConfig, adapted: Path) -> None:
    node = replace(node, bundle_dir=str(adapted))
    for count in (1, 2, 3):
        assert attach(node, runtime(block_count=count)).block_count == count


def test_blocks_are_used_again_without_a_trace(node: NodeConfig) -> None:
    loop = Loop(attach(node, runtime(block_count=4)))
    for prompt in (PROMPT, [9] * 30, PROMPT):
        answer = loop.submit(prompt)
        loop.run(answer)
    assert answer.tokens[0] == alone(node)


def test_tokens_that_would_end_too_early_are_barred(node: NodeConfig) -> None:
    first = alone(node)[0]
    tokens = alone(node, min_tokens=3, ending_ids=[first])
    assert first not in tokens[:3]
    assert alone(node, ending_ids=[first]) == [first]


def test_penalties_see_what_was_said(node: NodeConfig) -> None:
    tokens = alone(node, repetition_penalty=100.0, count=16)
    assert len(set(tokens)) == 16
    assert not set(tokens) & set(PROMPT)


def test_log_probabilities_are_the_models(node: NodeConfig) -> None:
    loop = Loop(attach(node, runtime()))
    answer = loop.submit(PROMPT, logprobs=3, count=2)
    loop.run(answer)
    for token, found in zip(answer.tokens[0], answer.logprobs, strict=True):
        assert found is not None
        assert found.ids[0] == token  # greedy: the likeliest
        assert found.values[0] == found.chosen < 0
        assert list(found.values) == sorted(found.values, reverse=True)
