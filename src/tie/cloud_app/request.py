"""One request, from its bytes to its last message. Every end of it passes through `_close`, good or bad."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from tie.api.inference.v1 import inference_pb2
from tie.api.inference.v1.inference_pb2 import InferenceResponse
from tie.api.job.v1 import job_pb2
from tie.cloud_app.config import Config
from tie.cloud_app.deadline import Deadline
from tie.cloud_app.dispatch import Dispatch, generate_params, tokens_wanted
from tie.cloud_app.failures import outcome, told
from tie.cloud_app.intake import Request, parse_request
from tie.cloud_app.outbox import Outbox
from tie.cloud_app.prompt import prompt_tokens
from tie.cloud_app.reply import Answer
from tie.cloud_app.warmup import Warmed
from tie.contracts.errors import TieError
from tie.servicekit.logs import failure_place, logger


@dataclass(slots=True)
class Summary:
    """Counts and times of one request: all that its log line says."""

    fields: dict[str, str | int | float] = field(default_factory=dict)
    _last: float = field(default_factory=time.perf_counter)

    def lap(self, name: str) -> None:
        """The time since the last lap, or since the beginning."""
        now = time.perf_counter()
        self.fields[name] = round((now - self._last) * 1000, 3)
        self._last = now


class RequestRun:
    """Runs once. `dispatch` is there before it begins, for those who may stop it."""

    def __init__(self, warmed: Warmed, config: Config, deadline: Deadline, outbox: Outbox, dispatch: Dispatch) -> None:
        self._warmed = warmed
        self._config = config
        self._deadline = deadline
        self._outbox = outbox
        self._dispatch = dispatch
        self._answer: Answer | None = None
        self.summary = Summary()

    def run(self, data: bytes) -> job_pb2.Outcome.ValueType:
        """Sends everything but the verdict, which it returns. Raises nothing: this is the edge of the request."""
        begun = time.perf_counter()
        self.summary = Summary()
        self.summary.fields["request_bytes"] = len(data)
        try:
            self._serve(data)
            verdict = self._close(None)
        except Exception as error:  # the edge of the request: whatever it was, the device hears of it
            verdict = self._close(error)
        if self._answer is not None:
            self.summary.fields["completion_tokens"] = self._answer.completion_tokens
        self.summary.fields["response_messages"] = self._outbox.count
        self.summary.fields["total_ms"] = round((time.perf_counter() - begun) * 1000, 3)
        return verdict

    def refuse(self, error: TieError) -> job_pb2.Outcome.ValueType:
        """Instead of `run`, when there is nothing to run."""
        return self._close(error)

    def _serve(self, data: bytes) -> None:
        warmed = self._warmed
        request = parse_request(data, warmed.offer, self._config.max_request_bytes)
        self.summary.lap("intake_ms")
        tokens = prompt_tokens(
            request,
            templates=warmed.templates,
            tokenizer=warmed.tokenizer,
            described=warmed.described.tokenizer,
            context_length=warmed.context_length,
        )
        self.summary.lap("prompt_ms")
        self.summary.fields |= {"prompt_tokens": len(tokens), "choices": request.sampling.n}
        self._answer = Answer(request, warmed.tokenizer, len(tokens))
        max_tokens = tokens_wanted(request, len(tokens), warmed.context_length)
        if max_tokens > 0:
            self._generate(request, tokens, max_tokens, self._answer)
        elif not self._dispatch.is_stopped:
            self._outbox.send(self._answer.end_empty())

    def _generate(self, request: Request, tokens: list[int], max_tokens: int, answer: Answer) -> None:
        params = generate_params(request, self._warmed, max_tokens, self._deadline)
        replies = self._dispatch.start(tokens, params, self._deadline, self._config.token_gap_timeout_s)
        self.summary.lap("dispatch_ms")
        is_first = True
        for reply in replies:
            if is_first:
                self.summary.lap("first_token_ms")
                is_first = False
            if answer.is_finished and reply.tokens:
                self._dispatch.enough()
            self._outbox.send(answer.take(reply.tokens, reply.event))
            self._dispatch.took(len(reply.tokens))
        self.summary.lap("decode_ms")
        if not self._dispatch.is_stopped:
            self._outbox.send(answer.end())

    def _close(self, error: Exception | None) -> job_pb2.Outcome.ValueType:
        """Held text goes out on every path; then, if need be, the error."""
        if self._dispatch.is_stopped:
            return self._abandon(inference_pb2.FINISH_REASON_CANCELLED, job_pb2.OUTCOME_OK, "cancelled")
        if error is None:
            self.summary.fields["outcome"] = "ok"
            return job_pb2.OUTCOME_OK
        message = told(error)
        self.summary.fields["kind"] = inference_pb2.ErrorKind.Name(message.kind)
        if not isinstance(error, TieError):
            logger().error("request.failed", **failure_place(error))
        verdict = self._abandon(inference_pb2.FINISH_REASON_ERROR, outcome(message.kind), "failed")
        self._outbox.send([InferenceResponse(error=message)])
        return verdict

    def _abandon(
        self, reason: inference_pb2.FinishReason.ValueType, verdict: job_pb2.Outcome.ValueType, name: str
    ) -> job_pb2.Outcome.ValueType:
        self.summary.fields["outcome"] = name
        if self._answer is not None:
            self._outbox.send(self._answer.abandon(reason))
        return verdict
