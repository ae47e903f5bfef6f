"""A whole answer, put together from its events."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field

from tie.vre.errors import BadAnswer
from tie.vre.events import Delta, Event, Finish, NodeError, Truncated, Usage
from tie.vre.request import ChatMessage
from tie.vre.tools import ToolCall


@dataclass(slots=True, repr=False)
class Choice:
    """One of the n choices; `finish_reason` is empty while it has none."""

    index: int
    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    """The last one is a part where the choice did not finish by `tool_calls`."""

    def add(self, delta: Delta) -> None:
        self.text += delta.text
        self.reasoning += delta.reasoning
        if (more := delta.tool_call) is None:
            return
        if more.call_index == len(self.tool_calls):
            self.tool_calls.append(ToolCall(more.id, more.tool, more.arguments_json))
        elif more.call_index < len(self.tool_calls):
            call = self.tool_calls[more.call_index]
            arguments = call.arguments_json + more.arguments_json
            self.tool_calls[more.call_index] = ToolCall(call.id, call.name, arguments)
        else:
            raise BadAnswer(f"the node went on with tool call {more.call_index} before it began it")

    def message(self) -> ChatMessage:
        """To be sent back as the assistant's turn, before the results of its calls."""
        return ChatMessage("assistant", self.text, tuple(self.tool_calls))


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
                self._choice(event.index).add(event)
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
