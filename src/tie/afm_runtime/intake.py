"""Turns the tensors of one request into an `Admitted`, or into a typed failure that names a field and a limit.

Everything that a request process sends is checked here, once, before any of it reaches the engine; a compromised one
may send anything, and what Bones refuses would fail the whole step, so nothing here is laxer than Bones. The ticket is
used up before the rest is looked at: one ticket, one attempt.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from numpy.typing import NDArray

from tie.afm_runtime.decoding.stops import StopRules
from tie.afm_runtime.forwarding import NO_ADAPTER, Ids, SamplingRules
from tie.afm_runtime.sequence import Admitted
from tie.afm_runtime.tickets import NoTicket, Ticket, Tickets
from tie.api.afm.v1 import afm_pb2
from tie.constraints.budget import MAX_COMPILED_BYTES
from tie.contracts import limits

MAX_DEADLINE_MS: Final = 3_600_000
MAX_TEMPERATURE: Final = 100.0
MAX_BIAS: Final = 100.0
MAX_PENALTY: Final = 100.0
LEAST_REPETITION_PENALTY: Final = 0.01


class Refused(Exception):
    """Why a request is not admitted. The message is the contract's, never the request's."""

    def __init__(self, kind: afm_pb2.FailureKind.ValueType, message: str) -> None:
        super().__init__(message)
        self.failure = afm_pb2.Failure(kind=kind, message=message)


@dataclass(frozen=True, slots=True)
class Serves:
    """What this runtime serves, as far as admission must know."""

    bundle_identity: bytes
    vocab_size: int
    context_length: int
    cache_blocks: int
    cache_block_size: int
    max_choices: int
    eos_ids: frozenset[int]
    has_token_bytes: bool
    adapters: tuple[str, ...] = ()
    """In the order in which the model was given them."""

    def longest(self, choices: int, prompt_len: int = 0) -> int:
        """Tokens that each of so many choices can have, prompt included: all of them must fit the cache together.

        The bound depends on the request alone. Whole blocks of the prompt are there once for all choices; the last
        token of an answer needs no place in the cache.
        """
        shared = min(max(prompt_len - 1, 0) // self.cache_block_size, self.cache_blocks)
        blocks = shared + (self.cache_blocks - shared) // choices
        return min(self.context_length, blocks * self.cache_block_size + 1)


def parse(raw: NDArray[np.uint8] | None) -> afm_pb2.GenerateParams:
    if raw is None:
        raise _invalid("PARAMS", "is missing")
    params = afm_pb2.GenerateParams()
    try:
        params.ParseFromString(raw.tobytes())
    except DecodeError:
        raise _invalid("PARAMS", "is not a GenerateParams message") from None
    if len(UnknownFieldSet(params)) or len(UnknownFieldSet(params.sampling)):
        raise _invalid("PARAMS", "holds a field that this runtime does not implement")
    return params


def claim(params: afm_pb2.GenerateParams, tickets: Tickets) -> Ticket:
    if len(params.ticket) != limits.TICKET_BYTES:
        raise Refused(afm_pb2.FAILURE_KIND_NO_TICKET, f"ticket: must have {limits.TICKET_BYTES} bytes")
    try:
        return tickets.claim(params.ticket)
    except NoTicket:
        raise Refused(afm_pb2.FAILURE_KIND_NO_TICKET, "ticket: is not live or was used before") from None


def admit(params: afm_pb2.GenerateParams, tokens: Ids | None, images: NDArray[Any] | None, serves: Serves) -> Admitted:
    """Raises Refused."""
    if params.bundle_identity != serves.bundle_identity:
        raise Refused(afm_pb2.FAILURE_KIND_OTHER_BUNDLE, "bundle_identity: this runtime serves another bundle")
    if images is not None and len(images):
        raise _invalid("IMAGES", "must be empty: this model takes no images")
    choices = _whole("n", params.n, 1, min(limits.MAX_CHOICES, serves.max_choices))
    prompt = _prompt(tokens, choices, serves)
    room = serves.longest(choices, len(prompt)) - len(prompt)
    max_tokens = _whole("max_tokens", params.max_tokens, 1, limits.MAX_TOKENS_LIMIT)
    min_tokens = _whole("min_tokens", params.min_tokens, 0, max_tokens)
    return Admitted(
        prompt=prompt,
        adapter=_adapter(params, serves),
        is_background=params.background,
        grammar=_grammar(params, serves),
        rules=_sampling(params, serves),
        stops=StopRules(
            max_tokens=min(max_tokens, room),
            min_tokens=min_tokens,
            ending_ids=_stop_ids(params, serves) | (frozenset() if params.ignore_eos else serves.eos_ids),
            strings=_stop_strings(params, serves),
        ),
        choices=choices,
        deadline=time.monotonic() + min(params.deadline_ms or MAX_DEADLINE_MS, MAX_DEADLINE_MS) / 1000,
    )


def _prompt(tokens: Ids | None, choices: int, serves: Serves) -> Ids:
    if tokens is None:
        raise _invalid("TOKENS", "is missing")
    if len(tokens) == 0:
        raise _invalid("TOKENS", "is empty: a prompt has at least 1 token")
    longest = serves.longest(choices, len(tokens))
    if len(tokens) >= longest:
        what = "context" if longest == serves.context_length else f"cache for {choices} choices"
        raise Refused(
            afm_pb2.FAILURE_KIND_TOO_LONG, f"TOKENS: {len(tokens)} tokens leave no room in a {what} of {longest}"
        )
    if int(tokens.min()) < 0 or int(tokens.max()) >= serves.vocab_size:
        raise _invalid("TOKENS", f"holds an id outside 0 to {serves.vocab_size - 1}")
    return tokens


def _adapter(params: afm_pb2.GenerateParams, serves: Serves) -> int:
    if not params.adapter:
        return NO_ADAPTER
    if params.adapter not in serves.adapters:
        raise _invalid("adapter", f"is none of the {len(serves.adapters)} that this runtime serves")
    return serves.adapters.index(params.adapter)


def _grammar(params: afm_pb2.GenerateParams, serves: Serves) -> str:
    if (size := len(params.grammar.encode("utf-8"))) > MAX_COMPILED_BYTES:
        raise _invalid("grammar", f"has {size} bytes, the limit is {MAX_COMPILED_BYTES}")
    if params.grammar and not serves.has_token_bytes:
        raise _invalid("grammar", "is not taken: the bundle does not say what its tokens spell")
    return params.grammar


def _sampling(params: afm_pb2.GenerateParams, serves: Serves) -> SamplingRules:
    given = params.sampling
    if len(given.logit_bias) > limits.MAX_LOGIT_BIASES:
        raise _invalid("logit_bias", f"has more than {limits.MAX_LOGIT_BIASES} entries")
    _check_ids("logit_bias", given.logit_bias, serves)
    bias = tuple(sorted((token, _real("logit_bias", b, -MAX_BIAS, MAX_BIAS)) for token, b in given.logit_bias.items()))
    logprobs = None
    if params.HasField("logprobs"):
        logprobs = _whole("logprobs", params.logprobs, 0, min(limits.MAX_LOGPROBS, serves.vocab_size))
    return SamplingRules(
        temperature=_real("temperature", given.temperature, 0.0, MAX_TEMPERATURE),
        top_p=_share("top_p", given.top_p),
        top_k=min(given.top_k, serves.vocab_size),
        min_p=_real("min_p", given.min_p, 0.0, 1.0),
        repetition_penalty=_real("repetition_penalty", given.repetition_penalty, LEAST_REPETITION_PENALTY, MAX_PENALTY),
        presence_penalty=_real("presence_penalty", given.presence_penalty, -MAX_PENALTY, MAX_PENALTY),
        frequency_penalty=_real("frequency_penalty", given.frequency_penalty, -MAX_PENALTY, MAX_PENALTY),
        seed=given.seed,
        logit_bias=bias,
        logprobs=logprobs,
    )


def _stop_ids(params: afm_pb2.GenerateParams, serves: Serves) -> frozenset[int]:
    if len(params.stop_token_ids) > limits.MAX_STOP_TOKEN_IDS:
        raise _invalid("stop_token_ids", f"has more than {limits.MAX_STOP_TOKEN_IDS} entries")
    _check_ids("stop_token_ids", params.stop_token_ids, serves)
    return frozenset(params.stop_token_ids)


def _stop_strings(params: afm_pb2.GenerateParams, serves: Serves) -> tuple[bytes, ...]:
    strings = tuple(params.stop_strings)
    if len(strings) > limits.MAX_STOP_STRINGS:
        raise _invalid("stop_strings", f"has more than {limits.MAX_STOP_STRINGS} entries")
    if any(not 1 <= len(string) <= limits.MAX_STOP_STRING_BYTES for string in strings):
        raise _invalid("stop_strings", f"holds one that is not 1 to {limits.MAX_STOP_STRING_BYTES} bytes long")
    if strings and not serves.has_token_bytes:
        raise _invalid("stop_strings", "cannot be matched: the bundle holds no token_bytes.bin")
    return strings


def _check_ids(where: str, ids: Iterable[int], serves: Serves) -> None:
    if any(not 0 <= token < serves.vocab_size for token in ids):
        raise _invalid(where, f"holds an id outside 0 to {serves.vocab_size - 1}")


def _whole(where: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise _invalid(where, f"is not within {low} to {high}")
    return value


def _real(where: str, value: float, low: float, high: float) -> float:
    """Fields are float32: a limit that is none must not exclude itself, and the engine's is in float64."""
    if not (math.isfinite(value) and float(np.float32(low)) <= value <= high):
        raise _invalid(where, f"is not a finite number within {low:g} to {high:g}")
    return max(low, value)


def _share(where: str, value: float) -> float:
    if not 0.0 < value <= 1.0:
        raise _invalid(where, "is not above 0 and at most 1")
    return value


def _invalid(where: str, problem: str) -> Refused:
    return Refused(afm_pb2.FAILURE_KIND_INVALID, f"{where}: {problem}")
