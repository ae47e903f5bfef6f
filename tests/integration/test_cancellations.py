"""Clients that leave at any point, by the thousand: every block comes back and nobody else's tokens change."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from doubles.running_runtime import MODEL, Call, RunningRuntime, running_runtime, wait_until
from doubles.scripted_engine import CONTEXT, NEVER_ENDS, SLOW, next_token

from tie.afm_runtime.forwarding import RowSampling, SamplingRules
from tie.afm_runtime.sequence import MOST_UNREAD
from tie.api.afm_control.v1 import afm_control_pb2
from tie.clients.inference import InferenceClient
from tie.clients.runtime_control import RuntimeControl
from tie.contracts.errors import TieError

LEAVERS = 10_000 if os.environ.get("TIE_SOAK") == "1" else 400
AT_ONCE = 12
WAYS = ["abort"] * 9 + ["disconnect"] * 9 + ["cancel the call"] * 2
"""Few cancel the call: ours do so only past a deadline, and storms of it end Triton itself."""


@pytest.fixture(scope="module")
def runtime() -> Iterator[RunningRuntime]:
    with running_runtime() as running:
        yield running


def status(runtime: RunningRuntime) -> afm_control_pb2.Metrics:
    with RuntimeControl.connect(runtime.paths.runtime_control_socket, 5) as control:
        return control.status().metrics


def leave(runtime: RunningRuntime, client: InferenceClient, rng: random.Random) -> str:
    """One request that is given up at a random point, in a random way; which it was."""
    prompt = rng.choice([[NEVER_ENDS], [SLOW], [rng.randrange(20, 800) for _ in range(rng.randrange(1, 120))]])
    count = rng.choice([1, 8, CONTEXT - len(prompt)])
    call = Call(runtime, client, prompt, max_tokens=count, n=rng.choice([1, 1, 3]), temperature=1.0)
    way, replies = rng.choice(WAYS), rng.choice([0, 0, 1, 3, 20])
    try:
        for _ in range(replies):
            if call.next().HasField("usage"):
                return "ended before"
        if not replies:
            time.sleep(rng.random() * 0.01)
        if way == "abort":
            call.link.abort()
        elif way == "disconnect":
            call.link.close()
        else:
            call.give_up()
        for _ in call.replies:
            pass
    except (TieError, StopIteration):
        assert way == "cancel the call"
    finally:
        call.link.close()
    return way


def witness(runtime: RunningRuntime, client: InferenceClient, seed: int) -> None:
    """A request that stays, and is answered as if alone."""
    prompt = [20 + seed % 700 + n for n in range(9)]
    found = Call(runtime, client, prompt, max_tokens=24, temperature=1.0, seed=seed).collect()
    tokens, rules = list(prompt), SamplingRules(temperature=1.0, seed=seed)
    row = RowSampling(rules, 0, np.zeros(0, np.int32), len(prompt))
    while len(tokens) < len(prompt) + len(found.tokens):
        tokens.append(next_token(tokens, row))
    assert len(found.tokens) == 24 or found.failure == "BUSY"
    assert found.tokens == tokens[len(prompt) :]


@pytest.mark.timeout(1800)
def test_clients_that_leave_anywhere_cost_nobody_a_block_or_a_token(runtime: RunningRuntime) -> None:
    before, ways = status(runtime), Counter[str]()

    def several(worker: int) -> None:
        rng = random.Random(worker)
        with InferenceClient(runtime.paths.triton_socket) as client:
            client.connect(10)
            for turn in range(LEAVERS // AT_ONCE):
                if worker % 4 == 0 and turn % 4 == 0:
                    witness(runtime, client, worker * LEAVERS + turn)
                ways[leave(runtime, client, rng)] += 1

    with ThreadPoolExecutor(AT_ONCE) as workers:
        list(workers.map(several, range(AT_ONCE)))
    wait_until(lambda: status(runtime).running == 0)
    after = status(runtime)
    assert after.blocks_free == before.blocks_free == after.blocks_total
    assert (after.queued_interactive, after.steps_failed) == (0, 0)
    ended = after.requests_finished + after.requests_failed + after.requests_cancelled
    assert after.requests_cancelled > LEAVERS // 10
    assert ended >= after.requests_accepted
    assert {"abort", "disconnect", "cancel the call"} <= ways.keys()
    said = [line["kind"] for line in runtime.events("triton.says") if "reason" not in line]  # since it serves
    assert not {"E", "F"} & set(said), "an error in Triton's log"
    assert not runtime.events("engine.step_failed")
    assert runtime.host.poll() is None


def test_a_reader_that_stops_reading_is_held_and_costs_its_mates_nothing() -> None:
    """Its answer is longer than what may wait; one that reads gets all of its own meanwhile."""
    roomy = MODEL.replace("attached(256,", "attached(1024,")
    with running_runtime(model=roomy) as runtime, InferenceClient(runtime.paths.triton_socket) as client:
        client.connect(10)
        stalled = Call(runtime, client, [NEVER_ENDS], max_tokens=CONTEXT - 1, n=8)
        stalled.next()
        wait_until(lambda: status(runtime).rows >= MOST_UNREAD)
        time.sleep(0.3)
        assert status(runtime).rows == MOST_UNREAD
        assert status(runtime).running == 8, "held, not ended"
        assert len(Call(runtime, client, [NEVER_ENDS], max_tokens=100).collect().tokens) == 100
        stalled.link.took(500)
        wait_until(lambda: status(runtime).rows >= MOST_UNREAD + 100 + 500)
        stalled.link.abort()
        assert len(stalled.collect().tokens) <= MOST_UNREAD + 500 + 8
        wait_until(lambda: status(runtime).blocks_free == status(runtime).blocks_total)
