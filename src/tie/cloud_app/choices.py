"""One choice of an answer: its tokens become text that may be shown, and its log-probabilities travel with it.

All text takes one way (spelling, stop filter, characters), and every end of a stream takes it to its end: `finish` is
the same for a stop, a limit, a cancel and an error.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tie.api.inference.v1 import inference_pb2
from tie.prompting.detokenising import Utf8Stream
from tie.prompting.stops import StopFilter
from tie.prompting.tokenizers import Tokenizer


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """What may be shown of a choice after a step."""

    text: str = ""
    logprobs: Sequence[inference_pb2.TokenLogprobs] = field(default_factory=tuple)

    def __bool__(self) -> bool:
        return bool(self.text or self.logprobs)


class Choice:
    """`take` tokens until `is_stopped` or the runtime finishes the choice; then `finish` once."""

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[bytes], *, min_tokens: int = 0, continues_text: bool = False
    ) -> None:
        self._spelling = tokenizer.spelling
        self._filter = StopFilter(stops)
        self._characters = Utf8Stream(drops_leading_space=tokenizer.adds_leading_space and not continues_text)
        self._min_tokens = min_tokens
        self._spelled = 0  # bytes
        self._waiting: deque[tuple[int, inference_pb2.TokenLogprobs]] = deque()
        self.count = 0
        self.is_finished = False

    @property
    def is_stopped(self) -> bool:
        """A stop string was found; what comes after it is not shown."""
        return self._filter.is_stopped

    def take(self, token_ids: Sequence[int], logprobs: Sequence[inference_pb2.TokenLogprobs] = ()) -> Shown:
        """The next tokens, each with its log-probabilities where the request asked for them."""
        released = b""
        for n, token_id in enumerate(token_ids):
            if self.is_stopped:
                break
            data = self._spelling(token_id)
            if logprobs:
                self._waiting.append((self._spelled + bool(data), logprobs[n]))
            self._spelled += len(data)
            self.count += 1
            released += self._filter.feed(data, may_stop=self.count >= self._min_tokens)
        return Shown(self._characters.feed(released), self._released_logprobs())

    def finish(self, stop_byte_offset: int | None = None) -> Shown:
        """No more tokens. `stop_byte_offset`: the runtime found a stop string there."""
        self.is_finished = True
        if stop_byte_offset is not None and not self.is_stopped:
            rest = self._filter.cut(stop_byte_offset)
        else:
            rest = self._filter.end()
        return Shown(self._characters.end(rest), self._released_logprobs())

    def _released_logprobs(self) -> list[inference_pb2.TokenLogprobs]:
        """Of the tokens whose first byte has passed, and of control tokens, which have none, once all before them has.

        A token of a hidden text is not told of either.
        """
        released = []
        while self._waiting and self._waiting[0][0] <= self._filter.released:
            released.append(self._waiting.popleft()[1])
        return released
