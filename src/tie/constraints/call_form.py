"""How one tool call is spelled, byte for byte: the grammar that models keep to and the app that reads them share it.

White space is what the templates write too, and no other: one space after a comma or a colon, and the bundle's own
beside the markers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from tie.catalog.tools import ToolsDescription

ITEM_SEPARATOR: Final = ", "
KEY_SEPARATOR: Final = ": "

Marker = int | str
"""The id of a token that spells nothing, or a text."""


@dataclass(frozen=True, slots=True)
class CallForm:
    """Of one model: its bundle's description, with the markers as its tokenizer has them."""

    described: ToolsDescription
    begin: Marker
    end: Marker

    def head(self, name: str) -> str:
        """Between the first marker and the arguments."""
        described = self.described
        opening = f"{json.dumps(described.name_key)}{KEY_SEPARATOR}{json.dumps(name)}{ITEM_SEPARATOR}"
        return f"{described.inside}{{{opening}{json.dumps(described.arguments_key)}{KEY_SEPARATOR}"

    @property
    def tail(self) -> str:
        """Between the arguments and the last marker."""
        return f"}}{self.described.inside}"

    @property
    def between(self) -> str:
        return self.described.between
