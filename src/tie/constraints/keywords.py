"""JSON Schema's keywords (2020-12, and what older drafts had): enforced, without effect, or refused by name.

There is no fourth kind: a keyword that stands nowhere here is refused as unknown, for it may be a misspelt one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# fmt: off
ENFORCED: Final = frozenset(
    [
        "$ref", "$defs", "definitions", "type", "enum", "const", "anyOf", "allOf", "oneOf", "minimum",
        "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength", "maxLength", "pattern",
        "format", "items", "prefixItems", "minItems", "maxItems", "properties", "required",
        "additionalProperties", "patternProperties", "minProperties", "maxProperties",
    ]
)
WITHOUT_EFFECT: Final = frozenset(
    [
        "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$comment",
        "contentEncoding", "contentMediaType", "contentSchema",
    ]
)
NOT_ENFORCED: Final = frozenset(
    [
        "not", "if", "then", "else", "dependentSchemas", "dependentRequired", "dependencies", "propertyNames",
        "contains", "minContains", "maxContains", "uniqueItems", "unevaluatedItems", "unevaluatedProperties",
        "additionalItems", "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$recursiveAnchor", "$anchor",
        "$id", "id", "$vocabulary",
    ]
)
# fmt: on
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
FORMATS: Final = frozenset({"date-time", "date", "time", "uuid", "ipv4", "ipv6"})
"""Of those that the matcher knows, the ones whose meaning every validator shares."""

ONE: Final = ("items", "additionalProperties")
"""Keywords whose value is a schema."""
LISTS: Final = ("anyOf", "allOf", "oneOf", "prefixItems")
MAPS: Final = ("properties", "patternProperties", "$defs", "definitions")

NEUTRAL: Final[Mapping[str, object]] = {"uniqueItems": False, "unevaluatedItems": True, "unevaluatedProperties": True}
"""Values with which a refused keyword asks for nothing."""
