"""Turns a checked constraint into the text form that the runtime's matcher reads, and tries it within the budget."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import gbnf_to_lark

from tie.constraints import schema
from tie.constraints.budget import (
    MAX_CHOICE_BYTES,
    MAX_COMPILED_BYTES,
    MAX_GRAMMAR_BYTES,
    MAX_REGEX_BYTES,
    MAX_VALUES,
    parser_limits,
)
from tie.constraints.errors import BadConstraint, NotEnforceable
from tie.constraints.lark import check as check_lark

BLAME_S: Final = 0.5
"""How long the place of a fault is looked for."""
OPTIONS: Final[Any] = {"whitespace_flexible": False, "coerce_one_of": False, "lenient": False}
"""No white space outside strings: a model that favours line breaks could add them for ever."""


def from_json_schema(text: str) -> str:
    """Raises BadConstraint, or NotEnforceable with keyword and place."""
    return _bounded(schema.ROOT, try_schema(schema.read(text), schema.ROOT))


def try_schema(checked: schema.Schema, where: str) -> str:
    """The text form of one schema. Raises NotEnforceable with keyword and place."""
    compiled = _of_schema(checked)
    if (fault := _fault(compiled)) is not None:
        raise NotEnforceable(_blamed(checked, where, time.monotonic() + BLAME_S), _said(fault))
    return compiled


def from_regex(pattern: str) -> str:
    """Of the whole answer. Raises BadConstraint."""
    where, size = "constraint.regex", len(pattern.encode("utf-8"))
    if not 1 <= size <= MAX_REGEX_BYTES:
        raise BadConstraint(where, f"has {size} bytes, 1 to {MAX_REGEX_BYTES} are taken")
    return tried(where, LLMatcher.grammar_from_regex(pattern))


def from_choices(choices: Sequence[str]) -> str:
    """The answer is one of these. Raises BadConstraint."""
    where = "constraint.choices"
    if not 1 <= len(choices) <= MAX_VALUES:
        raise BadConstraint(where, f"has {len(choices)} choices, 1 to {MAX_VALUES} are taken")
    for place, choice in enumerate(choices):
        if not 1 <= len(choice.encode("utf-8")) <= MAX_CHOICE_BYTES:
            raise BadConstraint(f"{where}[{place}]", f"has none or more than {MAX_CHOICE_BYTES} bytes")
    rule = " | ".join(json.dumps(choice, ensure_ascii=False) for choice in choices)
    return tried(where, LLMatcher.grammar_from_lark(f"start: {rule}"))


def from_gbnf(text: str) -> str:
    """Raises BadConstraint."""
    where = "constraint.gbnf"
    _check_size(where, text)
    try:
        lark = gbnf_to_lark(text)
    except Exception:  # a converter of text that a request brought: whatever it raises, the text is at fault
        raise BadConstraint(where, "is not a grammar in GBNF") from None
    # The converter's own first line is the only directive that may stand there.
    check_lark(where, lark.removeprefix("%llguidance {}"))
    return tried(where, LLMatcher.grammar_from_lark(lark))


def from_lark(text: str) -> str:
    """Raises BadConstraint, or NotEnforceable for what only templates may do."""
    where = "constraint.lark"
    _check_size(where, text)
    check_lark(where, text)
    return tried(where, LLMatcher.grammar_from_lark(text))


def _check_size(where: str, text: str) -> None:
    size = len(text.encode("utf-8"))
    if not 1 <= size <= MAX_GRAMMAR_BYTES:
        raise BadConstraint(where, f"has {size} bytes, 1 to {MAX_GRAMMAR_BYTES} are taken")


def tried(where: str, compiled: str) -> str:
    """The same text, within the budget. Raises BadConstraint."""
    if (fault := _fault(compiled)) is not None:
        raise BadConstraint(where, _said(fault))
    return _bounded(where, compiled)


def _bounded(where: str, compiled: str) -> str:
    if (size := len(compiled.encode("utf-8"))) > MAX_COMPILED_BYTES:
        raise BadConstraint(where, f"compiles to {size} bytes, the limit is {MAX_COMPILED_BYTES}")
    return compiled


def _of_schema(checked: schema.Schema) -> str:
    # True and false, which the compiler does not take, as schemas that say the same.
    as_object = checked if isinstance(checked, dict) else {} if checked else {"allOf": [False]}
    return LLMatcher.grammar_from_json_schema(as_object, overrides=OPTIONS)


def _fault(compiled: str) -> str | None:
    """What the matcher says against it: only classified, never shown, for it quotes."""
    is_error, messages = LLMatcher.validate_grammar_with_warnings(compiled, None, limits=parser_limits())
    return (messages[0] if messages else "unknown") if is_error else None


def _said(fault: str) -> str:
    for sign, meaning in _MEANINGS:
        if sign in fault:
            return meaning
    return "cannot be compiled: a value of the wrong type, or words that do not go together"


def _blamed(checked: schema.Schema, where: str, deadline: float) -> str:
    """Place of the innermost schema that does not compile by itself, as far as there is time to look for it."""
    node = checked
    definitions: dict[str, Any] = {}
    if isinstance(checked, dict):
        definitions = {key: checked[key] for key in ("$defs", "definitions") if key in checked}
    while isinstance(node, dict):
        for place, child in _parts(node):
            if time.monotonic() > deadline:
                return where
            if isinstance(child, dict) and _fault(_of_schema(definitions | child)) is not None:
                where, node = f"{where}.{place}", child
                break
        else:
            break
    return f"{where}{_keyword(node)}"


def _keyword(node: schema.Schema) -> str:
    """The one that the fault of a schema speaks of, where it speaks of one."""
    fault = _fault(_of_schema(node)) or ""
    if not isinstance(node, dict):
        return ""
    found = [key for key in sorted(node, key=len, reverse=True) if key in fault]
    if "regex" in fault and "pattern" in node:
        found = ["pattern"]
    return f".{found[0]}" if found else ""


def _parts(node: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for (key, _), place, child in schema.children(node):
        if key not in ("$defs", "definitions"):
            yield place, child


_MEANINGS: Final = (
    ("Unsatisfiable", "no value satisfies it"),
    ("min/maxProperties", "is not taken beside properties that are not all required"),
    ("oneOf", "has branches that could both be satisfied"),
    ("too large", "is too large: more symbols, states or steps than the budget has"),
    ("fuel", "is too large: more symbols, states or steps than the budget has"),
    ("too complex", "is too large: more symbols, states or steps than the budget has"),
    ("too many", "is too large: more symbols, states or steps than the budget has"),
)
