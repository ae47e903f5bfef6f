"""Reads a JSON Schema, and refuses by keyword and place what could not be enforced.

Places are paths in which members that the schema itself names are counted, not quoted: `properties[2]` is the third
property. What comes back holds enforced keywords alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from tie.catalog import strict_json
from tie.catalog.errors import BundleRejected
from tie.constraints import keywords
from tie.constraints.budget import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, MAX_SCHEMA_NODES, MAX_VALUES
from tie.constraints.errors import BadConstraint, NotEnforceable

ROOT: Final = "constraint.json_schema"
Schema = dict[str, Any] | bool
_LOCAL: Final = re.compile(r"#(/(\$defs|definitions)/[^/%~]+)?")


def read(text: str, where: str = ROOT) -> Schema:
    """The schema without what has no effect. Raises BadConstraint or NotEnforceable; places begin with `where`."""
    data = text.encode("utf-8")
    if len(data) > MAX_SCHEMA_BYTES:
        raise BadConstraint(where, f"has {len(data)} bytes, the limit is {MAX_SCHEMA_BYTES}")
    try:
        parsed = strict_json.loads(where, data)
    except BundleRejected:
        raise BadConstraint(where, "is not JSON in which every key stands once") from None
    return _Reader(parsed, where).schema(parsed, where, 0)


class _Reader:
    def __init__(self, root: Any, where: str) -> None:
        self._root = root
        self._where = where
        self._nodes = 0

    def schema(self, node: Any, where: str, depth: int) -> Schema:
        self._nodes += 1
        if self._nodes > MAX_SCHEMA_NODES:
            raise BadConstraint(self._where, f"holds more than {MAX_SCHEMA_NODES} schemas")
        if depth > MAX_SCHEMA_DEPTH:
            raise BadConstraint(self._where, f"is nested deeper than {MAX_SCHEMA_DEPTH}")
        if isinstance(node, bool):
            return node
        if not isinstance(node, dict):
            raise BadConstraint(where, "is no schema: neither an object nor true nor false")
        kept = {key: value for key, value in node.items() if self._is_kept(key, value, where, depth)}
        self._check_values(kept, where)
        for (key, at), place, child in children(kept):
            found = self.schema(child, f"{where}.{place}", depth + 1)
            if at is None:
                kept[key] = found
            else:
                kept[key][at] = found
        return kept

    def _is_kept(self, key: str, value: Any, where: str, depth: int) -> bool:
        if key in keywords.ENFORCED:
            return True
        if key in keywords.WITHOUT_EFFECT or (key in keywords.NEUTRAL and value == keywords.NEUTRAL[key]):
            return False
        if key == "$schema":
            if value != keywords.DIALECT or depth:
                raise NotEnforceable(f"{where}.$schema", "names another dialect than JSON Schema 2020-12")
            return False
        if key in keywords.NOT_ENFORCED:
            raise NotEnforceable(f"{where}.{key}", "cannot be enforced on answers")
        raise NotEnforceable(where, "has a member that is no keyword of JSON Schema 2020-12")

    def _check_values(self, node: dict[str, Any], where: str) -> None:
        for key in keywords.LISTS:
            if key in node and not (isinstance(node[key], list) and node[key]):
                raise BadConstraint(f"{where}.{key}", "is not a list of schemas")
        for key in keywords.MAPS:
            if key in node and not isinstance(node[key], dict):
                raise BadConstraint(f"{where}.{key}", "is not an object of schemas")
        if isinstance(node.get("items"), list):
            raise NotEnforceable(f"{where}.items", "is a list, as in older drafts: prefixItems is meant")
        if (values := node.get("enum")) is not None:
            if not isinstance(values, list) or not values:
                raise BadConstraint(f"{where}.enum", "is not a list of values")
            if len(values) > MAX_VALUES:
                raise BadConstraint(f"{where}.enum", f"has {len(values)} values, the limit is {MAX_VALUES}")
        if "format" in node and node["format"] not in keywords.FORMATS:
            raise NotEnforceable(f"{where}.format", f"is none of {', '.join(sorted(keywords.FORMATS))}")
        if (reference := node.get("$ref")) is not None:
            self._check_reference(reference, f"{where}.$ref")
        self._check_names(node, where)

    def _check_reference(self, reference: Any, where: str) -> None:
        if not isinstance(reference, str) or _LOCAL.fullmatch(reference) is None:
            raise NotEnforceable(where, "does not point into this schema's own $defs")
        seen = set()
        while isinstance(reference, str):
            if reference in seen:
                raise BadConstraint(where, "leads back to itself")
            seen.add(reference)
            target = self._root
            for part in reference.split("/")[1:]:
                target = target.get(part) if isinstance(target, dict) else None
            if target is None:
                raise BadConstraint(where, "points at nothing")
            reference = target.get("$ref") if isinstance(target, dict) else None

    def _check_names(self, node: dict[str, Any], where: str) -> None:
        """A property that two keywords speak of would have to satisfy both."""
        patterns = node.get("patternProperties", {})
        if len(patterns) > 1:
            raise NotEnforceable(f"{where}.patternProperties", "has more than one pattern: they could overlap")
        if patterns and (node.get("properties") or node.get("required")):
            raise NotEnforceable(f"{where}.patternProperties", "beside properties or required: they could overlap")


def children(node: dict[str, Any]) -> Iterator[tuple[tuple[str, Any], str, Any]]:
    """Keyword and member, place, and value of every schema directly within one."""
    for key in keywords.ONE:
        if key in node:
            yield (key, None), key, node[key]
    for key in keywords.LISTS:
        for index, child in enumerate(node.get(key, ())):
            yield (key, index), f"{key}[{index}]", child
    for key in keywords.MAPS:
        for index, (name, child) in enumerate(list(node.get(key, {}).items())):
            yield (key, name), f"{key}[{index}]", child
