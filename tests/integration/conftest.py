"""Nodes that tests share. A test that kills something takes `own_node`, the others the session's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from doubles.running_node import ROOT, RunningNode, running_node


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The bundle that `make setup` imports, as shipped."""
    return ROOT / "build" / "bundles" / "smollm2"


@pytest.fixture(scope="session")
def node(smollm2: Path) -> Iterator[RunningNode]:
    with running_node(smollm2) as running:
        yield running


@pytest.fixture
def own_node(smollm2: Path) -> Iterator[RunningNode]:
    with running_node(smollm2) as running:
        yield running
