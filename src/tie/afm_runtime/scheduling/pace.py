"""How many tokens a step may have, so that it takes about as long as wanted. Reads no clock.

While a step runs nothing else begins: a request that arrives waits for its end, and so does every answer. A short step
costs little throughput as soon as it has some tens of tokens, for then arithmetic and not the weights' way from memory
bounds it.
"""

from __future__ import annotations

from typing import Final

STEP_S: Final = 0.04
LEAST_TOKENS: Final = 48
"""However slow the model: below it the weights would be read for too few."""
_LEAST_TOLD: Final = 16
"""Smaller steps say little of what a token costs."""
_NEW_SHARE: Final = 0.2


class Pace:
    """`most`: tokens of a step, whatever its time."""

    def __init__(self, most: int, wanted_s: float = STEP_S) -> None:
        self._most = most
        self._wanted_s = wanted_s
        self._token_s: float | None = None

    @property
    def tokens(self) -> int:
        """For the next step."""
        fits = 0 if self._token_s is None else int(self._wanted_s / self._token_s)
        return min(self._most, max(LEAST_TOKENS, fits))

    def note(self, tokens: int, seconds: float) -> None:
        """A step of so many tokens took so long in the model."""
        if tokens < _LEAST_TOLD or seconds <= 0:
            return
        now = seconds / tokens
        self._token_s = now if self._token_s is None else self._token_s + _NEW_SHARE * (now - self._token_s)
