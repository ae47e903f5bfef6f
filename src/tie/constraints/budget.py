"""How much a grammar may cost, in the app that checks it and in the runtime that executes it alike."""

from __future__ import annotations

from typing import Final

from llguidance import LLParserLimits

MAX_SCHEMA_BYTES: Final = 64 * 1024
MAX_SCHEMA_DEPTH: Final = 64
MAX_SCHEMA_NODES: Final = 2000
"""Schemas within a schema."""
MAX_VALUES: Final = 1000
"""Of one enum, or of a list of choices."""
MAX_REGEX_BYTES: Final = 4096
MAX_GRAMMAR_BYTES: Final = 64 * 1024
MAX_CHOICE_BYTES: Final = 4096
MAX_COMPILED_BYTES: Final = 256 * 1024
"""Of the text form."""


def parser_limits() -> LLParserLimits:
    """Fuel for building a lexer and for one step of it, and bounds of its states; errors say nothing of the grammar."""
    return LLParserLimits(
        max_items_in_row=2000,
        initial_lexer_fuel=1_000_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        precompute_large_lexemes=False,
        verbose_errors=False,
    )
