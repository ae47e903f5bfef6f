"""Warming, sealing and taking over the prefix pool: what is refused, what fails, what is served then."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from doubles.engine_harness import Answer, Harness
from doubles.prefix_store import MemoryStore
from doubles.scripted_engine import BLOCK, CONTEXT, ECHO, NEVER_ENDS, VOCAB, serves

from tie.afm_runtime.engine import Engine
from tie.afm_runtime.orders import MAX_DRAIN_MS, Orders
from tie.afm_runtime.prefix.keeping import Keeping
from tie.afm_runtime.prefix.states import TRANSITIONS, Event, IllegalTransition, State, step
from tie.afm_runtime.prefix.trie import Trie
from tie.api.afm_control.v1 import afm_control_pb2 as pb

SYSTEM = [10 + n % 700 for n in range(42)]


class Node(Harness):
    """An engine with orders."""

    def __init__(self, store: MemoryStore | None, blocks: int = 128) -> None:
        super().__init__(blocks)
        self.keeping = Keeping(store, self.scheduler, self.pool, self.model, block_size=BLOCK, resident=32)
        self.engine = Engine(self.model, self.scheduler, lambda: None, self._suspect, self.meters, self.keeping)
        self.orders = Orders(
            serves(), self.engine, self.keeping, meters=self.meters, scheduler=self.scheduler, pool=self.pool
        )

    def order(self, **request: Any) -> str:
        """What was answered: nothing when accepted, else why not. Performed then."""
        response = self.orders.answer(pb.Request(**request))
        assert response is not None
        self.step()
        assert response.WhichOneof("response") in {"accepted", "refused"}
        return response.refused.message

    def status(self) -> pb.StatusResponse:
        response = self.orders.answer(pb.Request(status=pb.StatusRequest()))
        assert response is not None
        return response.status

    def warm(self, *prompts: list[int]) -> None:
        for prompt in prompts:
            assert self.order(warmup=pb.WarmupRequest(tokens=prompt)) == ""
        assert self.order(seal=pb.SealRequest()) == ""


def test_every_pair_that_is_not_in_the_table_is_refused() -> None:
    for state in State:
        for event in Event:
            if (state, event) not in TRANSITIONS:
                with pytest.raises(IllegalTransition, match=f"{event.name} in state {state.name}"):
                    step(state, event)


def test_without_an_owner_nothing_is_warmed() -> None:
    node = Node(None)
    assert "prefix pool is none" in node.order(warmup=pb.WarmupRequest(tokens=SYSTEM))
    assert "prefix pool is none" in node.order(seal=pb.SealRequest())
    assert node.status().prefix.state == pb.PREFIX_STATE_NONE


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ([], f"has 0 ids, 1 to {CONTEXT} are taken"),
        ([1] * (CONTEXT + 1), f"has {CONTEXT + 1} ids"),
        ([-1], "holds an id outside 0 to 999"),
        ([VOCAB], "holds an id outside 0 to 999"),
    ],
)
def test_prompts_that_cannot_be_are_refused(tokens: list[int], problem: str) -> None:
    node = Node(MemoryStore())
    assert problem in node.order(warmup=pb.WarmupRequest(tokens=tokens))
    assert node.status().prefix.state == pb.PREFIX_STATE_EMPTY


def test_what_is_sealed_is_neither_warmed_nor_sealed_again() -> None:
    node = Node(MemoryStore())
    assert "nothing was warmed" in node.order(seal=pb.SealRequest())
    node.warm(SYSTEM)
    assert "is sealed" in node.order(warmup=pb.WarmupRequest(tokens=SYSTEM))
    assert "is sealed" in node.order(seal=pb.SealRequest())


@pytest.mark.parametrize("at", ["allocate", "seal"])
def test_an_owner_that_fails_costs_the_cache_and_no_request(at: str) -> None:
    store = MemoryStore()
    store.fails_at = at
    node = Node(store)
    node.order(warmup=pb.WarmupRequest(tokens=SYSTEM))
    node.order(seal=pb.SealRequest())
    assert node.status().prefix.state == pb.PREFIX_STATE_FAILED
    assert node.status().prefix.prompts_waiting == 0
    assert node.ask([*SYSTEM, 7], max_tokens=3).tokens == Harness().ask([*SYSTEM, 7], max_tokens=3).tokens
    assert node.pool.free == 128
    assert "is failed" in node.order(warmup=pb.WarmupRequest(tokens=SYSTEM))


def test_a_model_that_fails_while_warming_costs_the_cache_and_no_block() -> None:
    node = Node(MemoryStore())
    node.order(warmup=pb.WarmupRequest(tokens=[902] * 9))  # the scripted model raises
    assert node.status().prefix.state == pb.PREFIX_STATE_FAILED
    assert node.pool.free == 128
    node.ask([ECHO, 5])


def test_warmed_prompts_are_served_from_the_pool_beside_requests_that_ran_meanwhile() -> None:
    store = MemoryStore()
    node = Node(store)
    running = node.submit([NEVER_ENDS], max_tokens=30)
    node.step(3)
    node.warm(SYSTEM, SYSTEM[:20], [5, 6])
    prefix = node.status().prefix
    assert (prefix.state, prefix.prompts_warmed, prefix.prompts_waiting) == (pb.PREFIX_STATE_SEALED, 3, 0)
    assert (prefix.blocks, prefix.blocks_left_out, prefix.is_restored) == (10, 0, False)
    answer = node.ask([*SYSTEM, 7], max_tokens=3)
    assert answer.request.cached == 40
    node.run(running)
    assert running.tokens == {0: [5] * 30}


def test_the_next_runtime_takes_over_what_was_sealed_and_evaluates_nothing() -> None:
    store = MemoryStore()
    first = Node(store)
    first.warm(SYSTEM)
    assert store.sealed is not None
    second = Node(store)
    second.keeping.restore(Trie.from_message(store.sealed, block_size=BLOCK, vocab_size=VOCAB), store.memory)
    assert second.model.steps == 0
    prefix = second.status().prefix
    assert (prefix.state, prefix.is_restored) == (pb.PREFIX_STATE_SEALED, True)
    assert prefix.digest == first.status().prefix.digest != b""
    assert second.ask([*SYSTEM, 7], max_tokens=3).tokens == first.ask([*SYSTEM, 7], max_tokens=3).tokens
    assert second.model.rows == 3


def test_a_prompt_larger_than_the_engines_own_cache_is_warmed_as_far_as_that_goes() -> None:
    node = Node(MemoryStore(), blocks=6)
    node.warm(SYSTEM)
    assert (node.status().prefix.blocks, node.status().prefix.blocks_left_out) == (6, 4)


def test_the_pool_is_not_written_after_its_seal() -> None:
    store = MemoryStore()
    node = Node(store)
    node.warm(SYSTEM)
    before = np.copy(store.memory)
    for seed in range(5):
        node.ask([*SYSTEM[:30], seed + 20], max_tokens=9)
    assert np.array_equal(store.memory, before)


# Draining.


def drained(node: Node, deadline_ms: int) -> None:
    assert node.order(drain=pb.DrainRequest(deadline_ms=deadline_ms)) == ""


def test_a_drain_past_its_limit_is_refused() -> None:
    assert str(MAX_DRAIN_MS) in Node(None).order(drain=pb.DrainRequest(deadline_ms=MAX_DRAIN_MS + 1))


def test_draining_refuses_what_is_new_and_finishes_what_runs_and_waits() -> None:
    node = Node(None, blocks=8)
    running = node.submit([NEVER_ENDS], max_tokens=20)
    node.step(2)
    waiting = node.submit([NEVER_ENDS] * 25, max_tokens=4)
    node.step()
    assert node.scheduler.queued == 1
    drained(node, 60_000)
    late = node.submit([ECHO, 5])
    node.step()
    assert late.kind == "DRAINING"
    assert node.status().state == pb.RUNTIME_STATE_DRAINING
    node.run(running, waiting)
    assert (running.reason, waiting.reason) == ("LENGTH", "LENGTH")
    assert node.status().state == pb.RUNTIME_STATE_DRAINED
    assert node.submit([ECHO, 5]).usage is None
    node.step()


@pytest.mark.parametrize("order", [lambda node: drained(node, 0), lambda node: (drained(node, 9000), drained(node, 1))])
def test_what_runs_at_the_deadline_is_ended_as_recycled_and_the_earliest_deadline_holds(
    order: Callable[[Node], object],
) -> None:
    node = Node(None, blocks=8)
    running: list[Answer] = [node.submit([NEVER_ENDS], max_tokens=20), node.submit([NEVER_ENDS] * 25, max_tokens=4)]
    node.step(2)
    order(node)
    time.sleep(0.002)
    node.step()
    assert [answer.kind for answer in running] == ["DRAINING", "DRAINING"]
    assert node.status().state == pb.RUNTIME_STATE_DRAINED
    assert node.pool.free == 8


def test_a_drained_engine_waits_for_messages_and_does_not_spin() -> None:
    node = Node(None)
    drained(node, 0)
    node.step()
    begin = time.monotonic()
    assert node.engine.take_messages(0.05)
    assert time.monotonic() - begin >= 0.04
