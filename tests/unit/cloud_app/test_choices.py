"""An answer with tool calls, from tokens to messages: whatever ends it, all of it takes the same way out (fault 5)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence

import pytest
from doubles.tiny_model import BPE_VOCAB_SIZE, tokenizer_file

from tie.api.afm.v1 import afm_pb2
from tie.api.inference.v1 import inference_pb2 as pb
from tie.catalog.tools import ToolsDescription
from tie.cloud_app.intake import ChatPrompt, Request
from tie.cloud_app.padding import pad
from tie.cloud_app.reply import Answer
from tie.cloud_app.sampling import Sampling
from tie.cloud_app.tools import Tools
from tie.constraints.call_form import CallForm
from tie.contracts.errors import InvalidRequest, PeerError
from tie.contracts.limits import RESPONSE_BUCKETS
from tie.prompting.byte_bpe import ByteBpe
from tie.prompting.chat import Tool

TOKENIZER = ByteBpe(tokenizer_file("byte_bpe"), BPE_VOCAB_SIZE)
EOS, MARK = TOKENIZER.controls.id_of("<|im_end|>"), TOKENIZER.controls.id_of("<|tool|>")
BY_TOKEN = CallForm(ToolsDescription("<|tool|>", "</tool>", inside="\n", between="\n"), MARK, "</tool>")
BY_TEXT = CallForm(ToolsDescription("<tool>", "</tool>"), "<tool>", "</tool>")
FORMS = {"by token": BY_TOKEN, "by text": BY_TEXT}
BY_BYTE = {TOKENIZER.spelling(token): token for token in reversed(range(TOKENIZER.vocab_size))}
STOPPED, LENGTH = pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH
CALLED = pb.FINISH_REASON_TOOL_CALLS


def answer(form: CallForm, stops: Sequence[str] = (), *, n: int = 1, logprobs: int | None = None) -> Answer:
    offered = Tools((Tool("get", ""), Tool("put", "")), form, "a grammar")
    stop_strings = tuple(stop.encode() for stop in stops)
    sampling = Sampling(n=n)
    return Answer(Request("id", ChatPrompt(()), sampling, stop_strings, (), logprobs, tools=offered), TOKENIZER, 7)


def tokens(text: str | bytes) -> list[int]:
    data = text.encode() if isinstance(text, str) else text
    return [BY_BYTE[bytes((byte,))] for byte in data]


def begin(form: CallForm) -> list[int]:
    return [form.begin] if isinstance(form.begin, int) else tokens(form.begin)


def call(form: CallForm, name: str, arguments: str) -> list[int]:
    return [*begin(form), *tokens(f"{form.head(name)}{arguments}{form.tail}{form.end}")]


def feed(to: Answer, ids: Sequence[int], *, choice: int = 0, at_once: int = 1) -> list[pb.InferenceResponse]:
    sent: list[pb.InferenceResponse] = []
    for n in range(0, len(ids), at_once):
        part = ids[n : n + at_once]
        sent += to.take(part, afm_pb2.GenerateEvent(runs=[afm_pb2.TokenRun(choice=choice, count=len(part))]))
    return sent


def ended(to: Answer, reason: afm_pb2.FinishReason.ValueType, last: Sequence[int] = ()) -> list[pb.InferenceResponse]:
    event = afm_pb2.GenerateEvent(runs=[afm_pb2.TokenRun(count=len(last))] if last else [])
    event.finishes.add(reason=reason)
    return list(to.take(last, event))


def by_eos(to: Answer) -> list[pb.InferenceResponse]:
    return ended(to, afm_pb2.FINISH_REASON_STOP_TOKEN, [EOS])


def by_grammar(to: Answer) -> list[pb.InferenceResponse]:
    return ended(to, afm_pb2.FINISH_REASON_GRAMMAR)


def by_length(to: Answer) -> list[pb.InferenceResponse]:
    return ended(to, afm_pb2.FINISH_REASON_LENGTH)


def by_cancel(to: Answer) -> list[pb.InferenceResponse]:
    return list(to.abandon(pb.FINISH_REASON_CANCELLED))


def by_error(to: Answer) -> list[pb.InferenceResponse]:
    return list(to.abandon(pb.FINISH_REASON_ERROR))


ENDS = {
    by_eos: STOPPED,
    by_grammar: pb.FINISH_REASON_GRAMMAR,
    by_length: LENGTH,
    by_cancel: pb.FINISH_REASON_CANCELLED,
    by_error: pb.FINISH_REASON_ERROR,
}


def told(sent: Iterable[pb.InferenceResponse], index: int = 0) -> tuple[str, list[tuple[str, str]]]:
    text, calls = "", list[tuple[str, str]]()
    for delta in (response.delta for response in sent if response.HasField("delta")):
        if delta.index != index:
            continue
        text += delta.text
        if delta.HasField("tool_call_delta"):
            more = delta.tool_call_delta
            if more.call_index == len(calls):
                assert more.id
                assert more.name
                calls.append((more.name, ""))
            else:
                assert (more.id, more.name) == ("", "")
            calls[more.call_index] = (calls[more.call_index][0], calls[more.call_index][1] + more.arguments_json)
    return text, calls


def reasons(sent: Iterable[pb.InferenceResponse]) -> list[int]:
    return [response.finish.reason for response in sent if response.HasField("finish")]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("end", "reason"), ENDS.items())
@pytest.mark.parametrize(
    ("before", "shown"),
    [
        (b"so <to", "so <to"),  # half a marker
        (b"half \xf0\x9f", "half \N{REPLACEMENT CHARACTER}"),  # half a character
        (b"STO", "STO"),  # half a stop string
        (b"<too STO", "<too STO"),
    ],
)
def test_every_end_lets_out_the_text_that_was_held(
    form: CallForm, end: Callable[[Answer], list[pb.InferenceResponse]], reason: int, before: bytes, shown: str
) -> None:
    to = answer(form, ["STOP"])
    sent = feed(to, tokens(before)) + end(to)
    assert (told(sent), reasons(sent)) == ((shown, []), [reason])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize(("end", "reason"), ENDS.items())
def test_every_end_tells_of_a_call_as_far_as_it_came(
    form: CallForm, end: Callable[[Answer], list[pb.InferenceResponse]], reason: int
) -> None:
    whole = call(form, "get", '{"a": "STO"}')
    name_known = len(begin(form)) + len(form.head("get"))
    arguments_end = name_known + len('{"a": "STO"}')
    for kept in range(len(begin(form)), len(whole) + 1):
        to = answer(form, ["STOP"])
        sent = feed(to, whole[:kept]) + end(to)
        arguments = '{"a": "STO"}'[: kept - name_known]
        assert told(sent) == ("", [] if kept < name_known else [("get", arguments)])
        assert kept < arguments_end or json.loads(told(sent)[1][0][1]) == {"a": "STO"}
        is_called = kept == len(whole) and end in (by_eos, by_grammar)
        assert reasons(sent) == [CALLED if is_called else reason]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("at_once", [1, 2, 5, 1000])
def test_text_and_calls_in_turn(form: CallForm, at_once: int) -> None:
    ids = [
        *tokens("I look. "),
        *call(form, "get", '{"é": "😀"}'),
        *tokens(form.between),
        *call(form, "put", "{}"),
        *tokens(" Done."),
    ]
    to = answer(form)
    sent = feed(to, ids, at_once=at_once) + by_eos(to)
    assert told(sent) == ("I look.  Done.", [("get", '{"é": "😀"}'), ("put", "{}")])
    assert reasons(sent) == [CALLED]


def test_a_stop_string_ends_a_call_like_any_text() -> None:
    for form in FORMS.values():
        to = answer(form, ["secret"])
        sent = feed(to, call(form, "get", '{"a": "my secret plan"}'))
        assert (told(sent), reasons(sent)) == (("", [("get", '{"a": "my ')]), [STOPPED])
        assert to.is_finished


def test_the_runtimes_own_stop_in_a_call_is_taken_at_its_byte() -> None:
    to = answer(BY_TOKEN, ["secret"])
    spoken = call(BY_TOKEN, "get", '{"a": "my se')
    sent = feed(to, spoken[: -len(tokens(f"{BY_TOKEN.tail}{BY_TOKEN.end}"))])
    event = afm_pb2.GenerateEvent()
    offset = len(BY_TOKEN.head("get")) + len('{"a": "my ')  # the marker spells nothing
    event.finishes.add(reason=afm_pb2.FINISH_REASON_STOP_STRING, stop_byte_offset=offset)
    sent += to.take([], event)
    assert (told(sent), reasons(sent)) == (("", [("get", '{"a": "my ')]), [STOPPED])


def test_a_marker_waits_for_the_text_before_it() -> None:
    """Which is held, for it might have become a stop string."""
    for stop in ("STOP", "ST\nX"):
        for at_once in (1, 3, 1000):
            to = answer(BY_TOKEN, [stop])
            sent = feed(to, [*tokens("say ST"), *call(BY_TOKEN, "get", "{}")], at_once=at_once) + by_eos(to)
            assert (told(sent), reasons(sent)) == (("say ST", [("get", "{}")]), [CALLED])


def test_a_marker_after_a_stop_string_is_not_seen() -> None:
    to = answer(BY_TOKEN, ["STOP"])
    sent = feed(to, [*tokens("a"), *tokens("STOP"), *call(BY_TOKEN, "get", "{}")], at_once=1000)
    assert (told(sent), reasons(sent)) == (("a", []), [STOPPED])


def test_choices_have_calls_of_their_own() -> None:
    to = answer(BY_TOKEN, n=2)
    first, second = call(BY_TOKEN, "get", '{"a": 1}'), [*tokens("no"), *call(BY_TOKEN, "put", "{}")]
    sent: list[pb.InferenceResponse] = []
    for n in range(max(len(first), len(second))):
        sent += feed(to, first[n : n + 1], choice=0) + feed(to, second[n : n + 1], choice=1)
    assert (told(sent), told(sent, 1)) == (("", [("get", '{"a": 1}')]), ("no", [("put", "{}")]))
    ids = {r.delta.tool_call_delta.id for r in sent if r.delta.tool_call_delta.id}
    assert len(ids) == 2


def test_arguments_beyond_the_last_bucket_are_split() -> None:
    long = json.dumps({"a": "\N{EURO SIGN}" * 20_000}, ensure_ascii=False)
    to = answer(BY_TOKEN)
    sent = feed(to, call(BY_TOKEN, "get", long), at_once=100_000)
    assert told(sent) == ("", [("get", long)])
    assert all(len(pad(response.SerializeToString())) in RESPONSE_BUCKETS for response in sent)
    assert len(sent) > 3


def test_log_probabilities_come_for_every_token_of_a_call() -> None:
    ids = [*tokens("hm"), *call(BY_TOKEN, "get", '{"a": 1}')]
    to = answer(BY_TOKEN, logprobs=0)
    sent: list[pb.InferenceResponse] = []
    for token in ids:
        run = afm_pb2.TokenRun(count=1, logprobs=[afm_pb2.TokenLogprobs(logprob=-1)])
        sent += to.take([token], afm_pb2.GenerateEvent(runs=[run]))
    assert [found.token_id for response in sent for found in response.delta.logprobs] == ids
    assert told(sent) == ("hm", [("get", '{"a": 1}')])


def test_what_is_no_call_after_its_marker_fails_and_is_not_shown() -> None:
    to = answer(BY_TOKEN)
    sent = feed(to, begin(BY_TOKEN))
    with pytest.raises(PeerError, match="begins no call"):
        feed(to, tokens("\nsecret"))
    sent += by_error(to)
    assert (told(sent), reasons(sent)) == (("", []), [pb.FINISH_REASON_ERROR])


def test_a_grammar_beyond_the_runtimes_budget_is_blamed_on_the_tools() -> None:
    failure = afm_pb2.Failure(kind=afm_pb2.FAILURE_KIND_GRAMMAR, message="too much")
    with pytest.raises(InvalidRequest, match="too much") as caught:
        list(answer(BY_TOKEN).take([], afm_pb2.GenerateEvent(failure=failure)))
    assert caught.value.where == "tools"
