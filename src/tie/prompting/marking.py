"""Tells a template's own writing from what a request brought, character by character.

Each character that can stand in a control token's spelling has a *twin*: a code point that no text uses, out of a
window that is drawn at random and known to be absent from the request. Before a template is compiled, control tokens
in its constants (and their beginnings and endings, for templates that put one together from pieces) are rewritten
with twins. User text flows through filters, tests and slices as it is. In the output a run of twins is the template's
own writing, whatever was cut or joined on the way; everything else is literal text, whatever it spells. Whoever loses
a twin on the way loses a control token, never wins one: constants that are compared, searched for or passed as
arguments keep their plain letters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Final

from jinja2 import nodes

from tie.prompting.controls import Controls

_EMPTY_PLANES: Final = range(0x40000, 0xE0000)
"""Planes 4 to 13: no character has been assigned there, and no case mapping leads there."""


class Twins:
    """A window of private code points, one for each character of `alphabet`. Immutable; `redrawn` makes another."""

    def __init__(self, alphabet: Iterable[str]) -> None:
        self._alphabet = "".join(sorted(set(alphabet)))
        size = max(1, len(self._alphabet))
        room = len(_EMPTY_PLANES) - size
        base = _EMPTY_PLANES[int.from_bytes(os.urandom(8), "big") % room]
        self._to_twin = {ord(plain): base + n for n, plain in enumerate(self._alphabet)}
        self._to_plain = {twin: plain for plain, twin in self._to_twin.items()}
        window = f"{chr(base)}-{chr(base + size - 1)}"
        self._runs = re.compile(f"[{window}]+")

    def redrawn(self) -> Twins:
        return Twins(self._alphabet)

    def mark(self, text: str) -> str:
        return text.translate(self._to_twin)

    def occur_in(self, text: str) -> bool:
        return not text.isascii() and self._runs.search(text) is not None

    def runs(self, text: str) -> Iterator[tuple[bool, str]]:
        """`text` as (is the template's own, plain text) in order; no run is empty."""
        done = 0
        for match in self._runs.finditer(text):
            if match.start() > done:
                yield False, text[done : match.start()]
            yield True, match.group().translate(self._to_plain)
            done = match.end()
        if done < len(text):
            yield False, text[done:]


class Trusted(str):
    """A word that is ours and not the user's, such as a role's name: plain in comparisons, twins once it is written."""

    _written: str

    def __new__(cls, word: str, twins: Twins) -> Trusted:
        self = super().__new__(cls, word)
        self._written = twins.mark(word)
        return self

    def __str__(self) -> str:
        return self._written

    def __format__(self, specification: str) -> str:
        return format(self._written, specification)

    def __add__(self, other: str) -> str:
        return self._written + str(other)

    def __radd__(self, other: str) -> str:
        return str(other) + self._written


def mark_template(template: nodes.Template, controls: Controls, twins: Twins) -> None:
    """Rewrites, in place, the constants of `template` that its output can be made of."""
    for node in template.find_all((nodes.Output, nodes.Assign, nodes.For)):
        sources: list[nodes.Expr] | list[nodes.Node] = []
        match node:
            case nodes.Output():
                sources = node.nodes
            case nodes.Assign():
                sources = [node.node]
            case nodes.For():
                sources = [node.iter]
        for source in sources:
            _mark_value(source, controls, twins)


def mark_constant(text: str, controls: Controls, twins: Twins) -> str:
    """`text` with the control tokens in it, and open pieces of one at its ends, as twins."""
    done, marked = 0, []
    head = controls.open_beginning(text)
    tail = len(text) - controls.open_ending(text)
    whole = [(start, end) for start, end, _ in controls.spans(text)]
    for start, end in ((0, head), *whole, (tail, len(text))):
        if start < done:
            start = done  # an open piece overlaps a whole one: the whole one has been marked
        if start >= end:
            continue
        marked += [text[done:start], twins.mark(text[start:end])]
        done = end
    return "".join([*marked, text[done:]])


def _mark_value(node: nodes.Node, controls: Controls, twins: Twins) -> None:
    """Follows where a value comes from; conditions, arguments, keys and operands of tests are not part of it."""
    match node:
        case nodes.TemplateData():
            node.data = mark_constant(node.data, controls, twins)
        case nodes.Const(value=str()):
            node.value = mark_constant(node.value, controls, twins)
        case nodes.Add() | nodes.Or() | nodes.And():
            _mark_value(node.left, controls, twins)
            _mark_value(node.right, controls, twins)
        case nodes.Concat():
            for part in node.nodes:
                _mark_value(part, controls, twins)
        case nodes.CondExpr():
            for branch in (node.expr1, node.expr2):
                if branch is not None:
                    _mark_value(branch, controls, twins)
        case nodes.Filter() if node.node is not None:
            _mark_value(node.node, controls, twins)
        case nodes.List() | nodes.Tuple():
            for item in node.items:
                _mark_value(item, controls, twins)
        case nodes.Dict():
            for pair in node.items:
                _mark_value(pair.value, controls, twins)
        case nodes.Getitem():
            _mark_value(node.node, controls, twins)
        case nodes.Call(node=nodes.Getattr() as method):
            _mark_value(method.node, controls, twins)
        case _:
            pass
