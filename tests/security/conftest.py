"""The same nodes as the integration tests."""

from __future__ import annotations

from integration.conftest import node, own_node, smollm2

__all__ = ["node", "own_node", "smollm2"]
