"""What one rendering may cost, counted in steps and characters rather than in time, so that a refusal repeats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Final, TypeVar

from tie.prompting.errors import TemplateOverBudget

T = TypeVar("T")

MAX_STEPS: Final = 100_000
"""Loop passes, calls and operations; a chat of 512 messages takes some thousands."""
MAX_STRING_CHARS: Final = 24 * 1024 * 1024
"""Of any one value on the way; more than twice what a request can bring."""
MAX_TOTAL_CHARS: Final = 512 * 1024 * 1024
"""Of all values on the way together."""
MAX_INTEGER_BITS: Final = 256
_ITEMS_PER_STEP: Final = 8


@dataclass(slots=True)
class Budget:
    """Counts down over one rendering. Raises TemplateOverBudget where a limit is passed."""

    steps_left: int = MAX_STEPS
    chars_left: int = MAX_TOTAL_CHARS

    def step(self, count: int = 1) -> None:
        self.steps_left -= count
        if self.steps_left < 0:
            raise TemplateOverBudget(f"the template takes more than {MAX_STEPS} steps")

    def size(self, chars: int) -> None:
        """Ask before a value of this size is made, where its size can be known."""
        self.chars_left -= chars
        if chars > MAX_STRING_CHARS:
            raise TemplateOverBudget(f"the template makes a text of more than {MAX_STRING_CHARS} characters")
        if self.chars_left < 0:
            raise TemplateOverBudget(f"the template writes more than {MAX_TOTAL_CHARS} characters in all")

    def value(self, value: object) -> None:
        """Accounts for a value that exists."""
        if isinstance(value, str):
            self.size(len(value))
        elif isinstance(value, int) and value.bit_length() > MAX_INTEGER_BITS:
            raise TemplateOverBudget(f"the template computes with more than {MAX_INTEGER_BITS} bits")
        elif isinstance(value, Sized) and not isinstance(value, int):
            self.step(len(value) // _ITEMS_PER_STEP)

    def counted(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            self.step()
            yield item
