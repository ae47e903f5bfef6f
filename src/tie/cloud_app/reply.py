"""What the runtime sends becomes what the device is told: deltas, one finish a choice, usage or one error.

Makes messages; padding and sending them is `outbox`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from tie.api.afm.v1 import afm_pb2
from tie.api.inference.v1 import inference_pb2
from tie.api.inference.v1.inference_pb2 import InferenceResponse
from tie.cloud_app.choices import Choice
from tie.cloud_app.deltas import deltas
from tie.cloud_app.failures import from_runtime
from tie.cloud_app.intake import RawPrompt, Request
from tie.contracts.errors import PeerError
from tie.prompting.tokenizers import Tokenizer

_REASONS: Final[Mapping[afm_pb2.FinishReason.ValueType, inference_pb2.FinishReason.ValueType]] = {
    afm_pb2.FINISH_REASON_STOP_TOKEN: inference_pb2.FINISH_REASON_STOP,
    afm_pb2.FINISH_REASON_STOP_STRING: inference_pb2.FINISH_REASON_STOP,
    afm_pb2.FINISH_REASON_LENGTH: inference_pb2.FINISH_REASON_LENGTH,
    afm_pb2.FINISH_REASON_GRAMMAR: inference_pb2.FINISH_REASON_GRAMMAR,
    afm_pb2.FINISH_REASON_CANCELLED: inference_pb2.FINISH_REASON_CANCELLED,
    afm_pb2.FINISH_REASON_FAILED: inference_pb2.FINISH_REASON_ERROR,
}
_ENDED: Final = (afm_pb2.FINISH_REASON_STOP_TOKEN, afm_pb2.FINISH_REASON_GRAMMAR)


class Answer:
    """The choices of one request. Feed it the runtime's events in order; `end` or `abandon` it once."""

    def __init__(self, request: Request, tokenizer: Tokenizer, prompt_token_count: int) -> None:
        self._request_id = request.request_id
        self._grammar_of = "constraint" if request.tools.form is None else "tools"
        self._wants_logprobs = request.logprobs is not None
        self._choices = [
            Choice(
                tokenizer,
                request.stop_strings,
                min_tokens=request.sampling.min_tokens,
                continues_text=isinstance(request.prompt, RawPrompt),
                tools=request.tools,
            )
            for _ in range(request.sampling.n)
        ]
        self._usage = inference_pb2.Usage(request_id=request.request_id, prompt=prompt_token_count)

    @property
    def is_finished(self) -> bool:
        """Every choice has its finish; the runtime may still have to say what it cost."""
        return all(choice.is_finished for choice in self._choices)

    @property
    def completion_tokens(self) -> int:
        """As the runtime counts them, or while it has not said: those that came."""
        return self._usage.completion or sum(choice.count for choice in self._choices)

    def take(self, tokens: Sequence[int], event: afm_pb2.GenerateEvent) -> Iterator[InferenceResponse]:
        """Raises PeerError where the event breaks the contract, and what a failure of the request stands for."""
        finishes = {finish.choice: finish for finish in event.finishes}
        at = 0
        for run in event.runs:
            index, choice = run.choice, self._choice(run.choice)
            ids = tokens[at : at + run.count]
            at += run.count
            if choice.is_finished:
                continue  # a stop string was found here first
            if index in finishes and finishes[index].reason == afm_pb2.FINISH_REASON_STOP_TOKEN:
                ids = ids[:-1]
            yield from deltas(index, choice.take(ids, self._logprobs(run, ids)))
            if choice.is_stopped:
                yield from self._finish(index, inference_pb2.FINISH_REASON_STOP)
        for index, finish in finishes.items():
            if not self._choice(index).is_finished:
                is_string = finish.reason == afm_pb2.FINISH_REASON_STOP_STRING
                offset = finish.stop_byte_offset if is_string else None
                yield from self._finish(index, _reason(finish), offset, has_ended=finish.reason in _ENDED)
        if event.HasField("usage"):
            self._count(event.usage)
        if event.HasField("failure"):
            raise from_runtime(event.failure, self._grammar_of)

    def end(self) -> Iterator[InferenceResponse]:
        """The runtime's stream has ended well. Raises PeerError when a choice has no finish."""
        if not self.is_finished:
            raise PeerError("the runtime ended the stream without finishing every choice")
        yield InferenceResponse(usage=self._usage)

    def end_empty(self) -> Iterator[InferenceResponse]:
        """No token was wanted."""
        yield from self.abandon(inference_pb2.FINISH_REASON_LENGTH)
        yield from self.end()

    def abandon(self, reason: inference_pb2.FinishReason.ValueType) -> Iterator[InferenceResponse]:
        """Gives out what is held and finishes the choices that the runtime did not."""
        for index, choice in enumerate(self._choices):
            if not choice.is_finished:
                yield from self._finish(index, reason)

    def _finish(
        self,
        index: int,
        reason: inference_pb2.FinishReason.ValueType,
        offset: int | None = None,
        *,
        has_ended: bool = False,
    ) -> Iterator[InferenceResponse]:
        """`has_ended`: the model itself came to an end, which after a call means that it waits for the result."""
        choice = self._choices[index]
        yield from deltas(index, choice.finish(offset))
        if has_ended and choice.has_called:
            reason = inference_pb2.FINISH_REASON_TOOL_CALLS
        yield InferenceResponse(finish=inference_pb2.Finish(index=index, reason=reason))

    def _choice(self, index: int) -> Choice:
        if index >= len(self._choices):
            raise PeerError(f"the runtime sent tokens for choice {index} of {len(self._choices)}")
        return self._choices[index]

    def _count(self, usage: afm_pb2.Usage) -> None:
        self._usage.prompt = usage.prompt
        self._usage.cached_prefix = usage.cached_prefix
        self._usage.restored = usage.restored
        self._usage.completion = usage.completion

    def _logprobs(self, run: afm_pb2.TokenRun, ids: Sequence[int]) -> Sequence[inference_pb2.TokenLogprobs]:
        if not self._wants_logprobs:
            return ()
        if len(run.logprobs) != run.count:
            raise PeerError(f"the runtime sent {run.count} tokens with {len(run.logprobs)} log-probabilities")
        return [_told(token_id, found) for token_id, found in zip(ids, run.logprobs, strict=False)]


def _told(token_id: int, found: afm_pb2.TokenLogprobs) -> inference_pb2.TokenLogprobs:
    others = zip(found.alternative_ids, found.alternative_logprobs, strict=False)
    return inference_pb2.TokenLogprobs(
        token_id=token_id,
        logprob=found.logprob,
        alternatives=[inference_pb2.Alternative(token_id=other, logprob=logprob) for other, logprob in others],
    )


def _reason(finish: afm_pb2.Finish) -> inference_pb2.FinishReason.ValueType:
    if finish.reason not in _REASONS:
        raise PeerError("the runtime finished a choice for no known reason")
    return _REASONS[finish.reason]
