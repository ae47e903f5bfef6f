"""Grammars in the engine: faults that stay with their request, ends, precedence, choices, preemption."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from doubles.constrained_model import EOS as BYTE_EOS
from doubles.constrained_model import VOCABULARY
from doubles.engine_harness import Answer, Harness
from doubles.scripted_engine import NEVER_ENDS, VOCAB

from tie.afm_runtime.decoding.grammar import GrammarFault, Matcher, Vocabulary
from tie.constraints import compiling

EOS = 2
FIRST = 10


class Letters:
    """Ids from FIRST on spell one byte each, from the space on; the ids before them spell nothing."""

    def __getitem__(self, token: int) -> bytes:
        return bytes([32 + token - FIRST]) if FIRST <= token < FIRST + 95 else b""


LETTERS = Vocabulary(Letters(), VOCAB, [EOS])


def matcher(pattern: str) -> Matcher:
    return LETTERS.matcher(compiling.from_regex(pattern))


def text(answer: Answer, choice: int = 0) -> str:
    return b"".join(Letters()[token] for token in answer.tokens[choice]).decode()


def bits(mask: np.ndarray[tuple[int], np.dtype[np.uint32]]) -> list[int]:
    return [int(token) for token in np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))]


def test_text_that_is_no_grammar_is_a_fault() -> None:
    for bad in ("", "{", "start: nope", "start: @x"):
        with pytest.raises(GrammarFault):
            VOCABULARY.matcher(bad)


def test_a_token_that_is_not_allowed_is_a_fault() -> None:
    follower = VOCABULARY.matcher(compiling.from_regex("ab"))
    with pytest.raises(GrammarFault):
        follower.feed(ord("b"))


def test_the_end_is_allowed_only_where_the_answer_is_whole() -> None:
    """And its spelling within a string is text."""
    follower = VOCABULARY.matcher(compiling.from_json_schema('{"type": "string", "maxLength": 9}'))
    for byte in b'"<eos>':
        assert BYTE_EOS not in bits(follower.allowed())
        follower.feed(byte)
    follower.feed(ord('"'))
    assert follower.is_complete
    several = Vocabulary(Letters(), VOCAB, [2, 3, 5]).matcher(compiling.from_regex("a+"))
    assert bits(several.allowed()) == [FIRST + ord("a") - 32]
    several.feed(FIRST + ord("a") - 32)
    assert {2, 3, 5} <= set(bits(several.allowed()))


def test_an_answer_ends_with_its_grammar_and_holds_nothing_more() -> None:
    harness = Harness()
    answer = harness.submit([NEVER_ENDS], max_tokens=50, matcher=matcher("abc"))
    harness.run(answer)
    assert (text(answer), answer.reason) == ("abc", "GRAMMAR")
    assert harness.pool.free == 128


@pytest.mark.parametrize("options", [{"min_tokens": 20}, {"ending_ids": ()}])
def test_a_complete_answer_ends_whatever_would_go_on(options: dict[str, Any]) -> None:
    harness = Harness()
    answer = harness.submit([NEVER_ENDS], max_tokens=50, matcher=matcher("true"), **options)
    harness.run(answer)
    assert (text(answer), answer.reason) == ("true", "GRAMMAR")


def test_min_tokens_holds_where_the_grammar_goes_on() -> None:
    harness = Harness()
    answer = harness.submit([NEVER_ENDS], max_tokens=50, min_tokens=6, matcher=matcher("a+"))
    harness.run(answer)
    assert len(text(answer)) >= 6
    assert set(text(answer)) == {"a"}


def test_the_limit_cuts_an_answer_that_is_not_complete() -> None:
    harness = Harness()
    answer = harness.submit([NEVER_ENDS], max_tokens=2, matcher=matcher("abc"))
    harness.run(answer)
    assert (text(answer), answer.reason) == ("ab", "LENGTH")
    answer = harness.submit([NEVER_ENDS], max_tokens=3, matcher=matcher("abc"))
    harness.run(answer)
    assert (text(answer), answer.reason) == ("abc", "GRAMMAR")


def test_a_fault_in_the_middle_ends_its_own_request_alone() -> None:
    harness = Harness()
    broken = matcher("abc")
    mate, bad = harness.submit([NEVER_ENDS], max_tokens=5), harness.submit([NEVER_ENDS], matcher=broken)
    harness.step()
    follower = bad.request.sequences[0].matcher
    assert follower is not None
    follower._matcher.consume_token(FIRST)
    harness.run(mate, bad)
    assert bad.kind == "GRAMMAR"
    assert mate.tokens == {0: [5] * 5}
    assert harness.pool.free == 128


def test_a_grammar_that_could_not_be_built_is_answered_at_once() -> None:
    harness = Harness()
    answer = harness.submit([NEVER_ENDS])
    answer.request.is_unbuildable = True
    harness.run(answer)
    assert answer.kind == "GRAMMAR"


def test_choices_and_what_was_preempted_keep_to_their_own_place() -> None:
    pattern = "(ab|cd|ef){8}"
    options: dict[str, Any] = {"choices": 3, "max_tokens": 17, "temperature": 1.0, "seed": 3}
    harness = Harness()
    alone = harness.submit([30] * 9, matcher=matcher(pattern), **options)
    harness.run(alone)
    assert len({text(alone, choice) for choice in range(3)}) == 3
    tight = Harness(17)
    older = tight.submit([NEVER_ENDS], max_tokens=60)
    answer = tight.submit([30] * 9, matcher=matcher(pattern), **options)
    tight.run(older, answer)
    assert tight.scheduler.preempted
    assert answer.tokens == alone.tokens


def test_no_mask_bit_is_ever_passed_over() -> None:
    """Answers of a model with a mind of its own parse."""
    harness = Harness(256, max_queued=8)
    schema = (
        '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": false}'
    )
    compiled = compiling.from_json_schema(schema)
    answers = [
        harness.submit([40 + n], max_tokens=60, temperature=1.0, seed=n, matcher=LETTERS.matcher(compiled))
        for n in range(6)
    ]
    harness.run(*answers)
    for answer in answers:
        if answer.reason != "LENGTH":
            assert list(json.loads(text(answer))) == ["a"]
