"""Whatever ends an answer, all of its text takes the same way out (faults 4, 5, 8, 11)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from doubles.tiny_model import BPE_VOCAB_SIZE, tokenizer_file

from tie.api.afm.v1 import afm_pb2
from tie.api.inference.v1 import inference_pb2 as pb
from tie.cloud_app.failures import GenerationFailed, PromptTooLong
from tie.cloud_app.intake import ChatPrompt, RawPrompt, Request
from tie.cloud_app.padding import pad
from tie.cloud_app.reply import Answer
from tie.cloud_app.sampling import Sampling
from tie.contracts.errors import DeadlinePassed, InvalidRequest, NotReady, OverCapacity, PeerError, TieError
from tie.contracts.limits import RESPONSE_BUCKETS
from tie.prompting.byte_bpe import ByteBpe
from tie.prompting.sentence_piece import SentencePiece

TOKENIZER = ByteBpe(tokenizer_file("byte_bpe"), BPE_VOCAB_SIZE)
EOS = TOKENIZER.controls.id_of("<|im_end|>")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LENGTH, STOP = pb.FINISH_REASON_LENGTH, pb.FINISH_REASON_STOP


def answer(stops: Sequence[str] = (), *, n: int = 1, logprobs: int | None = None, min_tokens: int = 0) -> Answer:
    sampling = Sampling(n=n, min_tokens=min_tokens)
    stop_strings = tuple(stop.encode() for stop in stops)
    return Answer(Request("id-1", ChatPrompt(()), sampling, stop_strings, (), logprobs), TOKENIZER, 7)


def event(*runs: tuple[int, int], finish: dict[int, Any] | None = None, **fields: Any) -> afm_pb2.GenerateEvent:
    made = afm_pb2.GenerateEvent(
        runs=[afm_pb2.TokenRun(choice=choice, count=count) for choice, count in runs], **fields
    )
    for choice, reason in (finish or {}).items():
        made.finishes.add(choice=choice, reason=reason)
    return made


def bytes_of(text: str | bytes) -> list[int]:
    """In tokens of one byte each."""
    by_byte = {TOKENIZER.spelling(token_id): token_id for token_id in reversed(range(TOKENIZER.vocab_size))}
    data = text.encode() if isinstance(text, str) else text
    return [by_byte[bytes((byte,))] for byte in data]


def texts(responses: Iterable[pb.InferenceResponse], index: int = 0) -> str:
    return "".join(r.delta.text for r in responses if r.HasField("delta") and r.delta.index == index)


def finishes(responses: Iterable[pb.InferenceResponse]) -> list[tuple[int, int]]:
    return [(r.finish.index, r.finish.reason) for r in responses if r.HasField("finish")]


def feed(to: Answer, tokens: Sequence[int]) -> list[pb.InferenceResponse]:
    return [response for token in tokens for response in to.take([token], event((0, 1)))]


def by_eos(to: Answer) -> list[pb.InferenceResponse]:
    return list(to.take([EOS], event((0, 1), finish={0: afm_pb2.FINISH_REASON_STOP_TOKEN})))


def by_length(to: Answer) -> list[pb.InferenceResponse]:
    return list(to.take([], event(finish={0: afm_pb2.FINISH_REASON_LENGTH})))


def by_cancel_of_the_runtime(to: Answer) -> list[pb.InferenceResponse]:
    return list(to.take([], event(finish={0: afm_pb2.FINISH_REASON_CANCELLED})))


def by_cancel(to: Answer) -> list[pb.InferenceResponse]:
    return list(to.abandon(pb.FINISH_REASON_CANCELLED))


def by_error(to: Answer) -> list[pb.InferenceResponse]:
    return list(to.abandon(pb.FINISH_REASON_ERROR))


def by_failure(to: Answer) -> list[pb.InferenceResponse]:
    """Message by message: what came before the error counts."""
    failure = afm_pb2.Failure(kind=afm_pb2.FAILURE_KIND_NOT_FINITE)
    sent: list[pb.InferenceResponse] = []
    try:
        for response in to.take([], event(finish={0: afm_pb2.FINISH_REASON_FAILED}, failure=failure)):
            sent.append(response)  # a list made at once would be lost with the error
    except GenerationFailed:
        return sent
    raise AssertionError("the failure was not raised")


ENDS = [
    (by_eos, STOP),
    (by_length, LENGTH),
    (by_cancel_of_the_runtime, pb.FINISH_REASON_CANCELLED),
    (by_cancel, pb.FINISH_REASON_CANCELLED),
    (by_error, pb.FINISH_REASON_ERROR),
    (by_failure, pb.FINISH_REASON_ERROR),
]


@pytest.mark.parametrize(("end", "reason"), ENDS)
@pytest.mark.parametrize(
    ("spoken", "shown"),
    [
        ("said STO", "said STO"),  # the beginning of a stop string is held
        (b"half \xf0\x9f\x98", f"half {REPLACEMENT}"),  # half a character is held
        (b"both ST\xc3", f"both ST{REPLACEMENT}"),
        (b"S\xe7\xb4", f"S{REPLACEMENT}"),
        ("", ""),
    ],
)
def test_every_end_lets_out_what_was_held(
    end: Callable[[Answer], list[pb.InferenceResponse]], reason: int, spoken: str | bytes, shown: str
) -> None:
    to = answer(["STOP"])
    sent = feed(to, bytes_of(spoken)) + end(to)
    assert texts(sent) == shown
    assert finishes(sent) == [(0, reason)]
    assert sent[-1].HasField("finish")


@pytest.mark.parametrize(("end", "reason"), ENDS)
def test_a_stop_string_ends_the_text_whatever_comes_after(
    end: Callable[[Answer], list[pb.InferenceResponse]], reason: int
) -> None:
    to = answer(["DEFGHIJ"])
    sent: list[pb.InferenceResponse] = []
    for part in ("ab", "DEF", "G", "HI", "JKL"):
        tokens = bytes_of(part)
        sent += to.take(tokens, event((0, len(tokens))))
    assert to.is_finished
    sent += feed(to, bytes_of("never"))
    sent += end(to)
    assert (texts(sent), finishes(sent)) == ("ab", [(0, STOP)])


def test_a_stop_string_within_one_token_hides_what_follows_it() -> None:
    to = answer(["PQ"])
    tokens = bytes_of("aPQb")
    assert texts(to.take(tokens, event((0, 4)))) == "a"


def test_the_runtime_may_find_the_stop_string_first() -> None:
    to = answer(["STOP"])
    sent = feed(to, bytes_of("xSTO"))
    made = event(finish={0: afm_pb2.FINISH_REASON_STOP_STRING})
    made.finishes[0].stop_byte_offset = 1
    sent += to.take([], made)
    assert (texts(sent), finishes(sent)) == ("x", [(0, STOP)])


def test_a_stop_string_counts_only_from_the_least_number_of_tokens_on() -> None:
    to = answer(["ab"], min_tokens=3)
    assert texts(feed(to, bytes_of("ab"))) == "ab"  # whole before the third token
    assert texts(feed(to, bytes_of("xab"))) == "x"
    assert to.is_finished
    straddling = answer(["abc"], min_tokens=3)
    assert texts(feed(straddling, bytes_of("abc"))) == ""
    assert straddling.is_finished


def test_a_stop_token_is_not_shown_even_if_it_is_a_word() -> None:
    to = answer()
    tokens = bytes_of("ab!")
    sent = list(to.take(tokens, event((0, 3), finish={0: afm_pb2.FINISH_REASON_STOP_TOKEN})))
    assert texts(sent) == "ab"


def test_choices_do_not_mix() -> None:
    to = answer(["x"], n=2)
    tokens = [*bytes_of(b"a\xc3"), *bytes_of("bx")]
    sent = list(to.take(tokens, event((0, 2), (1, 2))))
    sent += to.take(bytes_of(b"\xa9"), event((0, 1), finish={0: afm_pb2.FINISH_REASON_LENGTH}))
    assert (texts(sent, 0), texts(sent, 1)) == ("a\u00e9", "b")
    assert finishes(sent) == [(1, STOP), (0, LENGTH)]
    assert to.is_finished


def test_usage_comes_last_with_the_requests_own_name() -> None:
    to = answer()
    usage = afm_pb2.Usage(prompt=7, cached_prefix=2, restored=1, completion=3)
    sent = list(to.take([], event(finish={0: afm_pb2.FINISH_REASON_LENGTH}, usage=usage))) + list(to.end())
    assert sent[-1].usage == pb.Usage(request_id="id-1", prompt=7, cached_prefix=2, restored=1, completion=3)


def test_no_tokens_are_an_answer() -> None:
    sent = list(answer(n=2).end_empty())
    assert finishes(sent) == [(0, LENGTH), (1, LENGTH)]
    assert sent[-1].usage == pb.Usage(request_id="id-1", prompt=7)


def test_a_stream_that_ends_without_a_finish_is_the_runtimes_fault() -> None:
    with pytest.raises(PeerError, match="without finishing"):
        list(answer().end())


@pytest.mark.parametrize(
    ("tokens", "made", "fault"),
    [
        ([1], event((1, 1)), "choice 1 of 1"),
        ([], event(finish={3: afm_pb2.FINISH_REASON_LENGTH}), "choice 3 of 1"),
        ([], event(finish={0: afm_pb2.FINISH_REASON_UNSPECIFIED}), "no known reason"),
        ([], event(finish={0: 77}), "no known reason"),
    ],
)
def test_an_event_that_breaks_the_contract_is_the_runtimes_fault(
    tokens: list[int], made: afm_pb2.GenerateEvent, fault: str
) -> None:
    with pytest.raises(PeerError, match=fault):
        list(answer().take(tokens, made))


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (afm_pb2.FAILURE_KIND_INVALID, InvalidRequest),
        (afm_pb2.FAILURE_KIND_TOO_LONG, PromptTooLong),
        (afm_pb2.FAILURE_KIND_BUSY, OverCapacity),
        (afm_pb2.FAILURE_KIND_NOT_FINITE, GenerationFailed),
        (afm_pb2.FAILURE_KIND_DEADLINE, DeadlinePassed),
        (afm_pb2.FAILURE_KIND_DRAINING, NotReady),
        (afm_pb2.FAILURE_KIND_NO_TICKET, TieError),
        (afm_pb2.FAILURE_KIND_OTHER_BUNDLE, TieError),
        (afm_pb2.FAILURE_KIND_INTERNAL, TieError),
        (99, TieError),
    ],
)
def test_every_failure_of_the_runtime_has_a_type(kind: Any, error: type[TieError]) -> None:
    with pytest.raises(error) as caught:
        list(answer().take([], event(failure=afm_pb2.Failure(kind=kind, message="max_tokens: too many"))))
    assert type(caught.value) is error


def test_logprobs_travel_with_the_text_they_belong_to() -> None:
    to = answer(["STOP"], logprobs=1)
    sent: list[pb.InferenceResponse] = []
    for n, token in enumerate([*bytes_of("abST"), *bytes_of("OP")]):
        made = event((0, 1))
        made.runs[0].logprobs.add(logprob=-float(n), alternative_ids=[token, 5], alternative_logprobs=[-float(n), -9.0])
        sent += to.take([token], made)
    told = [entry for response in sent for entry in response.delta.logprobs]
    assert [(entry.token_id, entry.logprob) for entry in told] == [
        (token, -float(n)) for n, token in enumerate(bytes_of("ab"))
    ]
    assert [(other.token_id, other.logprob) for other in told[1].alternatives] == [(bytes_of("b")[0], -1.0), (5, -9.0)]


def test_logprobs_that_were_asked_for_must_be_there() -> None:
    with pytest.raises(PeerError, match="1 tokens with 0 log-probabilities"):
        list(answer(logprobs=0).take(bytes_of("a"), event((0, 1))))


def test_logprobs_that_were_not_asked_for_are_not_told() -> None:
    made = event((0, 1))
    made.runs[0].logprobs.add(logprob=-1.0)
    (sent,) = answer().take(bytes_of("a"), made)
    assert not sent.delta.logprobs


def test_everything_fits_a_bucket_however_much_comes_at_once() -> None:
    to = answer(logprobs=20)
    tokens = bytes_of("\U0001f600" * 3000)
    made = event((0, len(tokens)))
    for _ in tokens:
        ids, scores = list(range(490, 510)), [-1234.5678] * 20
        made.runs[0].logprobs.add(logprob=-0.5, alternative_ids=ids, alternative_logprobs=scores)
    sent = list(to.take(tokens, made))
    assert texts(sent) == "\U0001f600" * 3000
    assert sum(len(response.delta.logprobs) for response in sent) == len(tokens)
    for response in sent:
        assert len(pad(response.SerializeToString())) in RESPONSE_BUCKETS


def test_a_raw_text_is_continued_with_its_space() -> None:
    pieces = SentencePiece(tokenizer_file("sentencepiece"), BPE_VOCAB_SIZE)
    tokens = list(pieces.encode_literal("the end", is_start=True))
    for prompt, text in ((RawPrompt(""), " the end"), (ChatPrompt(()), "the end")):
        to = Answer(Request("", prompt, Sampling(), (), (), None), pieces, 1)
        assert texts(to.take(tokens, event((0, len(tokens))))) == text
