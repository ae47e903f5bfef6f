"""Which registered prompts are cached: a node is a block of tokens, and its place is that of its KV in the pool.

Only registered prompts enter it, only while warming. Lookups match whole blocks and compare their tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from tie.afm_runtime.forwarding import Ids
from tie.api.afm_control.v1 import prefix_pb2

_ROOT: Final = -1
_LITTLE: Final = np.dtype("<i4")


class TrieRejected(Exception):
    """Metadata that describe no trie. The message says where, never a token."""


@dataclass(slots=True, eq=False, repr=False)
class Node:
    """`tokens`: a whole block of ids, four bytes each, little-endian."""

    place: int
    tokens: bytes
    parent: int
    children: dict[bytes, Node] = field(default_factory=dict)


class Trie:
    def __init__(self, block_size: int) -> None:
        self.block_size: Final = block_size
        self._nodes: list[Node] = []
        self._roots: dict[bytes, Node] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def match(self, tokens: Ids, most: int) -> list[Node]:
        """The longest path of whole blocks with which `tokens` begin, of `most` blocks at most."""
        found: list[Node] = []
        children = self._roots
        for block in _blocks(tokens, self.block_size, most):
            node = children.get(block)
            if node is None:
                break
            found.append(node)
            children = node.children
        return found

    def insert(self, path: Sequence[Node], tokens: Ids) -> Node:
        """The next block after `path`, which is not there yet; its place is the next one."""
        parent = path[-1].place if path else _ROOT
        (block,) = _blocks(tokens, self.block_size, 1)
        return self._add(parent, block)

    def digest(self) -> bytes:
        """SHA-256 of what it holds and where: equal for equal tries, whoever made them."""
        summary = hashlib.sha256(self.block_size.to_bytes(4, "big"))
        for node in self._nodes:
            summary.update(node.parent.to_bytes(4, "big", signed=True) + node.tokens)
        return summary.digest()

    def to_message(self) -> prefix_pb2.PrefixTrie:
        nodes = [prefix_pb2.PrefixTrie.Node(parent=node.parent, tokens=node.tokens) for node in self._nodes]
        return prefix_pb2.PrefixTrie(block_size_tokens=self.block_size, nodes=nodes, digest=self.digest())

    @classmethod
    def from_message(cls, message: prefix_pb2.PrefixTrie, *, block_size: int, vocab_size: int) -> Trie:
        """Raises TrieRejected: nothing that came from outside is believed before all of it has been checked."""
        if message.block_size_tokens != block_size:
            raise TrieRejected(f"blocks have {message.block_size_tokens} tokens, this runtime's have {block_size}")
        trie = cls(block_size)
        for place, node in enumerate(message.nodes):
            if len(node.tokens) != block_size * _LITTLE.itemsize:
                raise TrieRejected(f"node {place} has {len(node.tokens)} bytes of tokens")
            if not _ROOT <= node.parent < place:
                raise TrieRejected(f"node {place} comes before its parent")
            ids = np.frombuffer(node.tokens, _LITTLE)
            if int(ids.min()) < 0 or int(ids.max()) >= vocab_size:
                raise TrieRejected(f"node {place} holds an id outside the vocabulary of {vocab_size}")
            if node.tokens in trie._children(node.parent):
                raise TrieRejected(f"node {place} is there twice")
            trie._add(node.parent, node.tokens)
        if trie.digest() != message.digest:
            raise TrieRejected("its digest is another one")
        return trie

    def _add(self, parent: int, block: bytes) -> Node:
        children = self._children(parent)
        assert block not in children, "whoever inserts has looked"
        node = children[block] = Node(len(self._nodes), block, parent)
        self._nodes.append(node)
        return node

    def _children(self, parent: int) -> dict[bytes, Node]:
        return self._roots if parent == _ROOT else self._nodes[parent].children


def _blocks(tokens: Ids, size: int, most: int) -> Iterator[bytes]:
    for block in range(min(most, len(tokens) // size)):
        yield tokens[block * size : (block + 1) * size].astype(_LITTLE, copy=False).tobytes()
