from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tie.afm_runtime.paging.pool import BlockPool, PoolCorrupt


def pool(count: int = 6) -> tuple[BlockPool, list[int]]:
    zeroed: list[int] = []

    def zero(blocks: Sequence[int]) -> None:
        zeroed.extend(blocks)

    return BlockPool(count, zero), zeroed


def test_releasing_twice_is_corruption() -> None:
    blocks, _ = pool()
    taken = blocks.take(2)
    blocks.release(taken, 0)
    with pytest.raises(PoolCorrupt, match="released more often"):
        blocks.release(taken, 0)


def test_sharing_an_unowned_block_is_corruption() -> None:
    blocks, _ = pool()
    with pytest.raises(PoolCorrupt, match="nobody owns"):
        blocks.share([3])


def test_an_owner_that_is_not_counted_is_found() -> None:
    blocks, _ = pool()
    taken = blocks.take(2)
    blocks.check([taken])
    with pytest.raises(PoolCorrupt, match="2 owners and is counted 1"):
        blocks.check([taken, taken[:1]])
    with pytest.raises(PoolCorrupt, match="0 owners and is counted 1"):
        blocks.check([taken[:1]])


def test_written_blocks_are_zeroed_before_they_are_free_and_others_are_not() -> None:
    blocks, zeroed = pool()
    taken = blocks.take(4)
    blocks.release(taken, 3)
    assert sorted(zeroed) == sorted(taken[:3])
    assert blocks.free == 6


def test_a_shared_block_is_zeroed_with_its_last_owner_whoever_wrote() -> None:
    blocks, zeroed = pool()
    taken = blocks.take(1)
    blocks.share(taken)
    blocks.release(taken, 1)
    assert zeroed == []
    blocks.check([taken])
    blocks.release(taken, 0)
    assert zeroed == taken


def test_a_zeroing_that_fails_frees_nothing() -> None:
    def fails(_: Sequence[int]) -> None:
        raise RuntimeError

    blocks = BlockPool(2, fails)
    taken = blocks.take(1)
    with pytest.raises(RuntimeError):
        blocks.release(taken, 1)
    assert blocks.free == 1


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), max_size=60))
def test_any_order_of_taking_and_releasing_keeps_the_books(moves: list[tuple[int, int]]) -> None:
    blocks, _ = pool(8)
    owners: list[list[int]] = []
    for choice, size in moves:
        if choice < 3 and size <= blocks.free:
            owners.append(blocks.take(size))
        elif choice == 3 and owners:
            blocks.share(owners[size % len(owners)])
            owners.append(list(owners[size % len(owners)]))
        elif owners:
            owner = owners.pop(size % len(owners))
            blocks.release(owner, min(size, len(owner)))
        blocks.check(owners)
    for owner in owners:
        blocks.release(owner, len(owner))
    assert blocks.free == 8
