"""One choice of an answer: its tokens become what may be shown, and its log-probabilities travel with it.

All of it takes one way (spelling, stop filter, text and calls, characters), and every end of a stream takes it to its
end: `finish` is the same for a stop, a limit, a cancel and an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tie.api.inference.v1 import inference_pb2
from tie.cloud_app.tool_calls import AllText, CallSplitter, Piece, Splitter
from tie.cloud_app.tools import NONE, Tools
from tie.prompting.detokenising import Utf8Stream
from tie.prompting.stops import StopFilter
from tie.prompting.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """What may be shown of a choice after a step."""

    pieces: Sequence[Piece] = ()
    logprobs: Sequence[inference_pb2.TokenLogprobs] = field(default_factory=tuple)

    def __bool__(self) -> bool:
        return bool(self.pieces or self.logprobs)


class Choice:
    """`take` tokens until `is_stopped` or the runtime finishes the choice; then `finish` once."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[bytes],
        *,
        min_tokens: int = 0,
        continues_text: bool = False,
        tools: Tools = NONE,
    ) -> None:
        self._spelling = tokenizer.spelling
        self._filter = StopFilter(stops)
        characters = Utf8Stream(drops_leading_space=tokenizer.adds_leading_space and not continues_text)
        self._splitter: Splitter = (
            AllText(characters) if tools.form is None else CallSplitter(tools.form, tools.names, characters)
        )
        self._controls: deque[tuple[int, int]] = deque()
        """Tokens without spelling that have not passed: bytes before them, id."""
        self._min_tokens = min_tokens
        self._spelled = 0  # bytes
        self._waiting: deque[tuple[int, inference_pb2.TokenLogprobs]] = deque()
        self.count = 0
        self.is_finished = False

    @property
    def is_stopped(self) -> bool:
        """A stop string was found; what comes after it is not shown."""
        return self._filter.is_stopped

    @property
    def has_called(self) -> bool:
        """A tool call is complete, and none is open."""
        return self._splitter.has_called

    def take(self, token_ids: Sequence[int], logprobs: Sequence[inference_pb2.TokenLogprobs] = ()) -> Shown:
        """The next tokens, each with its log-probabilities where the request asked for them."""
        released = b""
        for n, token_id in enumerate(token_ids):
            if self.is_stopped:
                break
            data = self._spelling(token_id)
            if logprobs:
                self._waiting.append((self._spelled + bool(data), logprobs[n]))
            if not data:
                self._controls.append((self._spelled, token_id))
            self._spelled += len(data)
            self.count += 1
            released += self._filter.feed(data, may_stop=self.count >= self._min_tokens)
        return Shown(list(self._passed(released)), self._released_logprobs())

    def finish(self, stop_byte_offset: int | None = None) -> Shown:
        """No more tokens. `stop_byte_offset`: the runtime found a stop string there."""
        self.is_finished = True
        if stop_byte_offset is not None and not self.is_stopped:
            rest = self._filter.cut(stop_byte_offset)
        else:
            rest = self._filter.end()
        return Shown([*self._passed(rest), *self._splitter.end()], self._released_logprobs())

    def _passed(self, released: bytes) -> Iterator[Piece]:
        """What the stop filter let through, with the control tokens in their places."""
        before = self._filter.released - len(released)
        while self._controls and self._controls[0][0] <= self._filter.released:
            place, token_id = self._controls.popleft()
            yield from self._splitter.feed(released[: max(0, place - before)])
            yield from self._splitter.control(token_id)
            released = released[max(0, place - before) :]
            before = max(before, place)
        yield from self._splitter.feed(released)

    def _released_logprobs(self) -> list[inference_pb2.TokenLogprobs]:
        """Of the tokens whose first byte has passed, and of control tokens, which have none, once all before them has.

        A token of a hidden text is not told of either.
        """
        released = []
        while self._waiting and self._waiting[0][0] <= self._filter.released:
            released.append(self._waiting.popleft()[1])
        return released
