"""The pool of warm pairs, over pairs that are made and ended at will."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from tie.cloudboard.pair import Pair
from tie.cloudboard.pool import Pool, PoolLimits
from tie.contracts.errors import OverCapacity, PeerGone


class FakePair:
    def __init__(self, warm_since: float) -> None:
        self.warm_since = warm_since
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.is_disposed = False

    async def wait(self) -> int:
        return await asyncio.shield(self.ended)

    async def dispose(self) -> None:
        self.is_disposed = True


class Yard:
    """Makes pairs for one pool; `fails` makes the next starts fail."""

    def __init__(self, pool_size: int = 2, max_pairs: int = 4, max_wait_s: float = 600) -> None:
        self.made: list[FakePair] = []
        self.fails = 0
        self.held: asyncio.Event | None = None
        limits = PoolLimits(pool_size, max_pairs, max_wait_s, refill_delay_s=0)
        self.pool = Pool(limits, self._start, lambda: None)

    async def _start(self) -> Pair:
        if self.held is not None:
            await self.held.wait()
        if self.fails:
            self.fails -= 1
            raise PeerGone("helper closed its socket")
        self.made.append(FakePair(asyncio.get_running_loop().time()))
        return cast(Pair, self.made[-1])


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.001)


def run(scenario: Callable[[Yard], Awaitable[None]], yard_of: Callable[[], Yard] = Yard) -> None:
    async def main() -> None:
        yard = yard_of()
        running = asyncio.create_task(yard.pool.run())
        try:
            await scenario(yard)
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await yard.pool.close()
        assert all(pair.is_disposed for pair in yard.made)

    asyncio.run(main())


def test_no_pair_within_the_limit_is_over_capacity() -> None:
    async def scenario(yard: Yard) -> None:
        yard.held = asyncio.Event()
        with pytest.raises(OverCapacity, match="within"):
            await yard.pool.acquire(0.01)
        assert yard.pool.in_flight == 0

    run(scenario)


def test_a_pool_that_cannot_start_pairs_is_not_able_until_it_can() -> None:
    async def scenario(yard: Yard) -> None:
        assert not yard.pool.is_able
        yard.fails = 1
        await until(lambda: yard.fails == 0)
        await until(lambda: yard.pool.warm == 2)
        assert yard.pool.is_able

    run(scenario)


def test_a_caller_that_gives_up_leaves_its_place_to_the_next() -> None:
    async def scenario(yard: Yard) -> None:
        yard.held = asyncio.Event()
        first = asyncio.create_task(yard.pool.acquire(10))
        second = asyncio.create_task(yard.pool.acquire(10))
        await until(lambda: yard.pool.in_flight == 2)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert yard.pool.in_flight == 1
        yard.held.set()
        assert await second in yard.made
        await until(lambda: yard.pool.warm == 2)

    run(scenario)


def test_a_pair_assigned_to_a_caller_that_is_cancelled_at_that_moment_is_not_lost() -> None:
    async def scenario(yard: Yard) -> None:
        yard.held = asyncio.Event()
        caller = asyncio.create_task(yard.pool.acquire(10))
        await until(lambda: yard.pool.in_flight == 1)
        yard.pool._offer(await _made(yard))
        caller.cancel()  # its future has a result by now, but the task has not run
        await asyncio.gather(caller, return_exceptions=True)
        assert yard.pool.in_flight == 0
        await until(lambda: yard.made[0].is_disposed)

    async def _made(yard: Yard) -> Pair:
        held, yard.held = yard.held, None
        pair = await yard._start()
        yard.held = held
        return pair

    run(scenario)


def test_a_warm_pair_that_dies_is_replaced() -> None:
    async def scenario(yard: Yard) -> None:
        await until(lambda: yard.pool.warm == 2)
        victim = yard.made[0]
        victim.ended.set_result(-9)
        await until(lambda: victim.is_disposed and yard.pool.warm == 2)
        assert len(yard.made) == 3

    run(scenario)


def test_an_old_warm_pair_is_replaced() -> None:
    async def scenario(yard: Yard) -> None:
        await until(lambda: len(yard.made) >= 4)
        assert yard.made[0].is_disposed

    run(scenario, lambda: Yard(max_wait_s=0.05))


def test_renewal_replaces_every_warm_pair_and_leaves_bound_ones_alone() -> None:
    async def scenario(yard: Yard) -> None:
        await until(lambda: yard.pool.warm == 2)
        bound = await yard.pool.acquire(10)
        await until(lambda: yard.pool.warm == 2)
        old = [pair for pair in yard.made if pair is not cast(FakePair, bound)]
        yard.pool.renew()
        await until(lambda: yard.pool.warm == 2 and all(pair.is_disposed for pair in old))
        assert not cast(FakePair, bound).is_disposed
        yard.pool.release(bound)

    run(scenario)


def test_there_are_never_more_pairs_than_the_cap() -> None:
    async def scenario(yard: Yard) -> None:
        bound = [await yard.pool.acquire(10) for _ in range(3)]
        late = asyncio.create_task(yard.pool.acquire(10))
        await asyncio.sleep(0.02)
        alive = [pair for pair in yard.made if not pair.is_disposed]
        assert len(alive) <= 3
        assert not late.done()
        yard.pool.release(bound[0])
        assert cast(FakePair, await late) not in bound
        for pair in (*bound[1:], late.result()):
            yard.pool.release(pair)

    run(scenario, lambda: Yard(pool_size=1, max_pairs=3))


def test_a_pair_is_handed_out_once() -> None:
    async def scenario(yard: Yard) -> None:
        first = await yard.pool.acquire(10)
        yard.pool.release(first)
        second = await yard.pool.acquire(10)
        assert second is not first
        await until(lambda: cast(FakePair, first).is_disposed)
        yard.pool.release(second)

    run(scenario)
