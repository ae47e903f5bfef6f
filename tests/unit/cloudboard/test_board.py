"""What the node says of itself: fail closed, busy is not an error, changes wake whoever waits."""

from __future__ import annotations

import asyncio

import pytest

from tie.cloudboard.board import Board, Load, NodeState
from tie.contracts.errors import NotReady


class Node:
    def __init__(self) -> None:
        self.in_flight, self.lack = 0, ""
        self.board = Board(8, lambda: self.in_flight, lambda: self.lack)


def test_a_node_that_no_controller_has_spoken_for_is_not_ready() -> None:
    node = Node()
    assert not node.board.is_serving
    assert node.board.load() == Load(0, 0, 0)
    with pytest.raises(NotReady, match="unknown"):
        node.board.check_admits()


@pytest.mark.parametrize("state", [NodeState.UNKNOWN, NodeState.BUSY, NodeState.ERROR])
def test_only_a_ready_node_admits(state: NodeState) -> None:
    node = Node()
    node.board.publish(state, 8, 4)
    assert node.board.load().max_batch_size == 0
    with pytest.raises(NotReady, match=state.name.lower()):
        node.board.check_admits()


def test_busy_is_serving_with_no_room_and_error_is_not_serving() -> None:
    node = Node()
    node.in_flight = 2
    node.board.publish(NodeState.BUSY)
    assert node.board.is_serving
    assert node.board.load() == Load(0, 2, 0)
    node.board.publish(NodeState.ERROR)
    assert not node.board.is_serving


@pytest.mark.parametrize("lack", ["no attested key", "no warm pair"])
def test_a_ready_node_that_lacks_something_is_not(lack: str) -> None:
    node = Node()
    node.board.publish(NodeState.READY)
    node.lack = lack
    assert not node.board.is_serving
    with pytest.raises(NotReady, match=lack):
        node.board.check_admits()


def test_draining_is_for_good() -> None:
    node = Node()
    node.board.publish(NodeState.READY)
    node.board.drain()
    node.board.publish(NodeState.READY)
    assert not node.board.is_serving
    with pytest.raises(NotReady, match="draining"):
        node.board.check_admits()


def test_capacity_is_the_smaller_of_the_pool_s_and_the_controller_s() -> None:
    node = Node()
    node.board.publish(NodeState.READY, 3, 2)
    assert node.board.load() == Load(3, 0, 2)
    node.board.publish(NodeState.READY, 100, 50)
    assert node.board.load() == Load(8, 0, 8)
    node.board.publish(NodeState.READY)
    assert node.board.load() == Load(8, 0, 8)


def test_everyone_who_waits_is_woken_by_a_change() -> None:
    async def scenario() -> None:
        board = Node().board
        waiting = [asyncio.create_task(board.change()) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        board.publish(NodeState.READY)
        async with asyncio.timeout(5):
            await asyncio.gather(*waiting)

    asyncio.run(scenario())
