"""A whole answer, put together from its events."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field

from tie.vre.events import Delta, Event, Finish, NodeError, Truncated, Usage


@dataclass(slots=True, repr=False)
class Choice:
    """One of the n choices; `finish_reason` is empty while it has none."""

    index: int
    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""


@dataclass(slots=True, repr=False)
class Collected:
    """`is_whole` says whether it may be shown as complete."""

    _by_index: dict[int, Choice] = field(default_factory=dict)
    usage: Usage | None = None
    error: NodeError | None = None
    truncated: Truncated | None = None

    @property
    def choices(self) -> list[Choice]:
        return [self._by_index[index] for index in sorted(self._by_index)]

    @property
    def is_whole(self) -> bool:
        return self.error is None and self.truncated is None

    @property
    def text(self) -> str:
        """Of the first choice."""
        return self._by_index[0].text if 0 in self._by_index else ""

    def add(self, event: Event) -> None:
        match event:
            case Delta():
                choice = self._choice(event.index)
                choice.text += event.text
                choice.reasoning += event.reasoning
            case Finish():
                self._choice(event.index).finish_reason = event.reason
            case Usage():
                self.usage = event
            case NodeError():
                self.error = event
            case Truncated():
                self.truncated = event

    def _choice(self, index: int) -> Choice:
        return self._by_index.setdefault(index, Choice(index))


def collect(events: Iterable[Event]) -> Collected:
    whole = Collected()
    for event in events:
        whole.add(event)
    return whole


async def collect_async(events: AsyncIterable[Event]) -> Collected:
    whole = Collected()
    async for event in events:
        whole.add(event)
    return whole
