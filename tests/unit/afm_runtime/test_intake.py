from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from doubles.runtime_calls import name, params
from doubles.scripted_engine import BLOCK, CONTEXT, EOS, VOCAB, serves
from hypothesis import given
from hypothesis import strategies as st

from tie.afm_runtime import intake
from tie.afm_runtime.forwarding import NO_ADAPTER
from tie.afm_runtime.intake import Refused, Serves
from tie.afm_runtime.tickets import Tickets

SERVES = serves()
TICKET = bytes(16)


def admit(tokens: Any = (1, 2, 3), images: Any = None, at: Serves = SERVES, **changes: Any) -> Any:
    ids = None if tokens is None else np.array(tokens, np.int32)
    return intake.admit(params(TICKET, **changes), ids, images, at)


def refusal(**arguments: Any) -> tuple[str, str]:
    with pytest.raises(Refused) as caught:
        admit(**arguments)
    return name(caught.value.failure.kind), caught.value.failure.message


NAN, INF = math.nan, math.inf
REFUSED: dict[str, list[Any]] = {
    "max_tokens": [None, 0, 2**31 - 1, 2**32 - 1],
    "n": [None, 0, 9, 2**32 - 1],
    "min_tokens": [17, 2**32 - 1],
    "temperature": [-1.0, 101.0, NAN, INF, -INF],
    "top_p": [None, 0.0, -0.5, 1.001, NAN, INF],
    "min_p": [-0.1, 1.1, NAN],
    "repetition_penalty": [None, 0.0, 0.009, 101.0, NAN, INF, -1.0],
    "presence_penalty": [-101.0, 101.0, NAN, INF],
    "frequency_penalty": [-101.0, 101.0, NAN, -INF],
    "logit_bias": [{VOCAB: 1.0}, {-1: 1.0}, {1: NAN}, {1: INF}, {1: 101.0}, dict.fromkeys(range(1025), 1.0)],
    "stop_token_ids": [[VOCAB], [-1], [1] * 65],
    "stop_strings": [[b""], [b"x" * 257], [b"x"] * 17],
    "logprobs": [21, 2**32 - 1],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in REFUSED.items() for value in values])
def test_absurd_values_are_refused_by_field_and_limit(field: str, value: Any) -> None:
    kind, message = refusal(**{field: value})
    assert kind == "INVALID"
    assert message.startswith(f"{field}: ")
    assert message == message.lower()


@pytest.mark.parametrize(
    ("tokens", "kind", "problem"),
    [
        (None, "INVALID", "missing"),
        ([], "INVALID", "empty"),
        ([-1], "INVALID", "outside 0 to 999"),
        ([1, VOCAB], "INVALID", "outside 0 to 999"),
        ([2**31 - 1], "INVALID", "outside 0 to 999"),
        ([1] * CONTEXT, "TOO_LONG", "256 tokens leave no room in a context of 256"),
    ],
)
def test_prompts_that_cannot_be_run(tokens: Any, kind: str, problem: str) -> None:
    found, message = refusal(tokens=tokens)
    assert found == kind
    assert problem in message


def test_another_bundle_is_refused_whatever_else_is_wrong() -> None:
    assert refusal(bundle_identity=bytes(32), max_tokens=0)[0] == "OTHER_BUNDLE"
    assert refusal(bundle_identity=b"")[0] == "OTHER_BUNDLE"


def test_images_are_refused_by_name() -> None:
    assert refusal(images=np.zeros(1, np.uint8))[1].startswith("IMAGES: ")
    assert admit(images=np.zeros(0, np.uint8)).choices == 1


def test_stop_strings_need_the_table() -> None:
    without = serves(has_token_bytes=False)
    assert "token_bytes.bin" in refusal(at=without, stop_strings=[b"x"])[1]
    assert admit(at=without).stops.strings == ()


@pytest.mark.parametrize("adapter", ["marker", "Formal", "formal\x00", "formal,terse", " "])
def test_an_adapter_that_is_not_served_is_refused_without_its_name(adapter: str) -> None:
    kind, message = refusal(adapter=adapter)
    assert (kind, message) == ("INVALID", "adapter: is none of the 2 that this runtime serves")


def test_an_adapter_is_found_by_name_and_none_is_none() -> None:
    assert [admit(adapter=adapter).adapter for adapter in ("formal", "terse", "", None)] == [
        0,
        1,
        NO_ADAPTER,
        NO_ADAPTER,
    ]


def test_missing_malformed_and_newer_parameters() -> None:
    for raw, problem in [
        (None, "missing"),
        (np.frombuffer(b"\xff" * 40, np.uint8), "not a GenerateParams"),
        (np.frombuffer(b"\xf8\x3f\x01", np.uint8), "does not implement"),
    ]:
        with pytest.raises(Refused) as caught:
            intake.parse(raw)
        assert problem in caught.value.failure.message


def test_a_newer_sampling_field_is_refused_too() -> None:
    message = params(TICKET)
    message.sampling.MergeFromString(b"\xf8\x3f\x01")
    with pytest.raises(Refused, match="does not implement"):
        intake.parse(np.frombuffer(message.SerializeToString(), np.uint8))


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    kinds = set()
    try:
        intake.parse(np.frombuffer(data, np.uint8))
    except Refused as refused:
        kinds.add(name(refused.failure.kind))
    assert kinds <= {"INVALID"}


def test_a_ticket_is_good_once() -> None:
    tickets = Tickets()
    ticket = tickets.issue()
    for value in (b"", bytes(15), bytes(17), bytes(16)):
        with pytest.raises(Refused) as caught:
            intake.claim(params(value), tickets)
        assert name(caught.value.failure.kind) == "NO_TICKET"
    assert intake.claim(params(ticket.value), tickets) is ticket
    with pytest.raises(Refused, match="used before"):
        intake.claim(params(ticket.value), tickets)


def test_values_arrive_as_they_were_sent() -> None:
    admitted = admit(
        tokens=[7, 8], temperature=0.5, top_p=0.25, top_k=2**32 - 1, logit_bias={3: -1.5}, seed=2**64 - 1,
        logprobs=0, stop_token_ids=[4], stop_strings=[b"\xff"], min_tokens=3, n=8, max_tokens=9,
    )  # fmt: skip
    rules, stops = admitted.rules, admitted.stops
    assert (rules.temperature, rules.top_p, rules.top_k, rules.seed) == (0.5, 0.25, VOCAB, 2**64 - 1)
    assert (rules.logit_bias, rules.logprobs, admitted.choices) == (((3, -1.5),), 0, 8)
    assert (stops.ending_ids, stops.strings, stops.min_tokens, stops.max_tokens) == ({4, EOS}, (b"\xff",), 3, 9)


def test_ignoring_eos_keeps_the_stop_ids() -> None:
    assert admit(ignore_eos=True, stop_token_ids=[4]).stops.ending_ids == {4}


def test_limits_of_float32_fields_admit_themselves() -> None:
    assert admit(repetition_penalty=0.01).rules.repetition_penalty == 0.01
    assert admit(temperature=1e-45).rules.temperature > 0
    assert admit(top_p=1e-9).rules.top_p > 0
    assert admit(temperature=100.0, presence_penalty=-100.0, logit_bias={1: 100.0}).rules.temperature == 100


def test_the_completion_ends_with_the_context() -> None:
    assert admit(tokens=[1] * (CONTEXT - 3), max_tokens=100).stops.max_tokens == 3


def test_choices_share_the_cache_and_each_has_its_part() -> None:
    small = serves(block_count=10)
    assert admit(at=small, n=3, max_tokens=100).stops.max_tokens == 3 * BLOCK + 1 - 3
    # Whole blocks of the prompt are there once: seven, and one more for each choice.
    assert admit(at=small, n=3, tokens=[1] * 29, max_tokens=100).stops.max_tokens == 8 * BLOCK + 1 - 29
    kind, message = refusal(at=small, n=3, tokens=[1] * 33)
    assert kind == "TOO_LONG"
    assert "33 tokens leave no room in a cache for 3 choices of 33" in message
    assert refusal(at=serves(block_count=2), n=3)[0] == "TOO_LONG"
    assert refusal(at=serves(max_choices=2), n=3)[0] == "INVALID"


def test_no_request_shows_in_a_representation() -> None:
    assert "77" not in repr(admit(tokens=[77, 77]))
    assert "marker" not in repr(admit(stop_strings=[b"marker"]).stops)
