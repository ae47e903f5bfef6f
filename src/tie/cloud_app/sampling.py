"""Numbers of a request, each held against its bound. A refusal names field, class and limit, not the value."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from tie.api.inference.v1 import inference_pb2
from tie.contracts import limits
from tie.contracts.errors import InvalidRequest

DEFAULT_TEMPERATURE: Final = 1.0
MAX_TEMPERATURE: Final = 100.0
GREEDY_BELOW: Final = 1e-5
"""Below this the most probable token is the only one left, and dividing by it would overflow: the same as 0."""
MAX_TOP_K: Final = 2**31 - 1
PENALTY_LIMIT: Final = 2.0
REPETITION_PENALTIES: Final = (0.01, 10.0)
BIAS_LIMIT: Final = 100.0


@dataclass(frozen=True, slots=True, repr=False)
class Sampling:
    """Checked, defaults filled in. `max_tokens` is None where the context alone bounds the answer."""

    temperature: float = DEFAULT_TEMPERATURE
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int = 1


def check_sampling(asked: inference_pb2.Sampling, vocab_size: int) -> Sampling:
    """Raises InvalidRequest."""
    temperature = _real(asked, "temperature", 0.0, MAX_TEMPERATURE, DEFAULT_TEMPERATURE)
    max_tokens = _whole(asked, "max_tokens", 0, limits.MAX_TOKENS_LIMIT) if asked.HasField("max_tokens") else None
    min_tokens = _whole(asked, "min_tokens", 0, limits.MAX_TOKENS_LIMIT, 0)
    if max_tokens is not None and min_tokens > max_tokens:
        raise InvalidRequest("sampling.min_tokens", "is above max_tokens")
    top_p = _real(asked, "top_p", 0.0, 1.0, 1.0)
    if top_p == 0.0:
        raise InvalidRequest("sampling.top_p", "is 0, which keeps no token; must be above 0 and at most 1")
    return Sampling(
        temperature=0.0 if temperature < GREEDY_BELOW else temperature,
        top_p=top_p,
        top_k=min(_whole(asked, "top_k", 0, MAX_TOP_K, 0), vocab_size),
        min_p=_real(asked, "min_p", 0.0, 1.0, 0.0),
        repetition_penalty=_real(asked, "repetition_penalty", *REPETITION_PENALTIES, 1.0),
        presence_penalty=_real(asked, "presence_penalty", -PENALTY_LIMIT, PENALTY_LIMIT, 0.0),
        frequency_penalty=_real(asked, "frequency_penalty", -PENALTY_LIMIT, PENALTY_LIMIT, 0.0),
        logit_bias=_biases(asked, vocab_size),
        seed=asked.seed if asked.HasField("seed") else None,
        max_tokens=max_tokens,
        min_tokens=min_tokens,
        ignore_eos=asked.ignore_eos,
        n=_whole(asked, "n", 1, limits.MAX_CHOICES, 1),
    )


def check_token_id(token_id: int, where: str, vocab_size: int) -> int:
    if not 0 <= token_id < vocab_size:
        raise InvalidRequest(where, f"is no token id of the model: ids are 0 to {vocab_size - 1}")
    return token_id


def _biases(asked: inference_pb2.Sampling, vocab_size: int) -> dict[int, float]:
    where = "sampling.logit_bias"
    if len(asked.logit_bias) > limits.MAX_LOGIT_BIASES:
        raise InvalidRequest(where, f"has {len(asked.logit_bias)} entries, the limit is {limits.MAX_LOGIT_BIASES}")
    return {
        check_token_id(token_id, where, vocab_size): _within(bias, where, -BIAS_LIMIT, BIAS_LIMIT)
        for token_id, bias in asked.logit_bias.items()
    }


def _real(asked: inference_pb2.Sampling, name: str, low: float, high: float, default: float) -> float:
    if not asked.HasField(name):  # type: ignore[arg-type]  # the stubs want a literal
        return default
    return _within(getattr(asked, name), f"sampling.{name}", low, high)


def _within(value: float, where: str, low: float, high: float) -> float:
    if not math.isfinite(value):
        raise InvalidRequest(where, "is not a finite number")
    if not low <= value <= high and value != _as_sent(low) and value != _as_sent(high):
        raise InvalidRequest(where, f"is {'below' if value < low else 'above'} the range {low:g} to {high:g}")
    return value


def _as_sent(bound: float) -> float:
    """A bound as the wire's 32 bits hold it."""
    return inference_pb2.Sampling(temperature=bound).temperature


def _whole(asked: inference_pb2.Sampling, name: str, low: int, high: int, default: int = 0) -> int:
    if not asked.HasField(name):  # type: ignore[arg-type]  # the stubs want a literal
        return default
    value = int(getattr(asked, name))
    if not low <= value <= high:
        raise InvalidRequest(f"sampling.{name}", f"is {'below' if value < low else 'above'} the range {low} to {high}")
    return value
