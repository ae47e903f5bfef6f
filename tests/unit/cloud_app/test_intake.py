"""Each refusal of the application payload: by field, with its limit, and never with what the request said."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.api.inference.v1 import inference_pb2 as pb
from tie.cloud_app.failures import ModelNotFound, told
from tie.cloud_app.intake import ChatPrompt, Offer, RawPrompt, Request, ValuesPrompt, parse_request
from tie.contracts import limits
from tie.contracts.errors import InvalidRequest, Unsupported
from tie.prompting.chat import Message

MARKER = "MARKER7f3a"
OFFER = Offer("tiny", 512, True, {"greet": frozenset({"name", "tone"})}.get, frozenset({"formal", "terse"}))
Change = Callable[[pb.InferenceRequest], Any]


def request(*changes: Change) -> pb.InferenceRequest:
    asked = pb.InferenceRequest()
    asked.chat.messages.add(role=pb.ROLE_USER).parts.add(text=MARKER)
    for change in changes:
        change(asked)
    return asked


def parse(asked: pb.InferenceRequest | bytes, offer: Offer = OFFER) -> Request:
    return parse_request(asked if isinstance(asked, bytes) else asked.SerializeToString(), offer)


def tool_choice(**choice: Any) -> Change:
    return lambda r: r.tool_choice.CopyFrom(pb.ToolChoice(**choice))


def sampling(**fields: Any) -> Change:
    return lambda r: r.sampling.MergeFrom(pb.Sampling(**fields))


def values(*names: str) -> Change:
    prompt = pb.TemplatePrompt(template_id="greet", values=dict.fromkeys(names, ""))
    return lambda r: r.template_prompt.CopyFrom(prompt)


def add_parts(r: pb.InferenceRequest, count: int) -> None:
    for _ in range(count):
        r.chat.messages[0].parts.add(text="")


SCHEMA = json.dumps({"anyOf": [{"title": MARKER, "not": {"const": MARKER}}]})
UNSUPPORTED: list[tuple[str, Change]] = [
    ("tools", lambda r: r.tools.add(name=MARKER)),
    ("constraint.fragment", lambda r: setattr(r.constraint.fragment, "rules", MARKER)),
    ("constraint.json_schema.anyOf[0].not", lambda r: setattr(r.constraint, "json_schema", SCHEMA)),
    ("turn", lambda r: setattr(r.turn, "turn_id", b"x" * 16)),
    ("turn", lambda r: r.turn.SetInParent()),
    ("chat.messages[0].parts[1].image", lambda r: r.chat.messages[0].parts.add(image=MARKER.encode())),
    ("chat.messages[0].parts[1].image", lambda r: r.chat.messages[0].parts.add(image=b"")),
    ("chat.messages[0].tool_calls", lambda r: r.chat.messages[0].tool_calls.add(name=MARKER)),
    ("chat.messages[0].tool_call_id", lambda r: setattr(r.chat.messages[0], "tool_call_id", MARKER)),
    ("chat.messages[1].role", lambda r: r.chat.messages.add(role=pb.ROLE_TOOL)),
]
INVALID: list[tuple[str, str, Change]] = [
    ("template_source", "bundle", lambda r: setattr(r, "template_source", f"{{% for x in range(9) %}}{MARKER}")),
    ("request_id", "129 characters, the limit is 128", lambda r: setattr(r, "request_id", "x" * 129)),
    ("request_id", "printable ASCII", lambda r: setattr(r, "request_id", "a\nb")),
    ("request_id", "printable ASCII", lambda r: setattr(r, "request_id", "\u00e9")),
    ("model", "65 characters, the limit is 64", lambda r: setattr(r, "model", "x" * 65)),
    ("adapter", "65 characters, the limit is 64", lambda r: setattr(r, "adapter", "x" * 65)),
    ("adapter", "printable ASCII", lambda r: setattr(r, "adapter", "form\nal")),
    ("tool_choice", "no choice", lambda r: r.tool_choice.SetInParent()),
    ("tool_choice", "no choice", tool_choice(none=False)),
    ("prompt", "missing", lambda r: r.ClearField("chat")),
    ("chat.messages", "0 messages, 1 to 512", lambda r: r.chat.ClearField("messages")),
    ("chat.messages", "513 messages", lambda r: [r.chat.messages.add(role=pb.ROLE_USER) for _ in range(512)]),
    ("chat.messages[0].parts", "65 parts, the limit is 64", lambda r: add_parts(r, 64)),
    ("chat.messages[0].parts[1]", "empty", lambda r: r.chat.messages[0].parts.add()),
    ("chat.messages[1].role", "none of", lambda r: r.chat.messages.add()),
    ("chat.messages[1].role", "none of", lambda r: r.chat.messages.add(role=99)),
    ("template_prompt.template_id", "no template", lambda r: setattr(r.template_prompt, "template_id", MARKER)),
    ("template_prompt.template_id", "no template", lambda r: r.template_prompt.SetInParent()),
    ("template_prompt.template_id", "65 characters", lambda r: setattr(r.template_prompt, "template_id", "x" * 65)),
    ("template_prompt.values", "none of: name, tone", values(MARKER)),
    ("template_prompt.values", "65 values, the limit is 64", values(*map(str, range(65)))),
    ("stop_strings", "17 strings, the limit is 16", lambda r: r.stop_strings.extend([MARKER] * 17)),
    ("stop_strings[1]", "0 bytes, 1 to 256", lambda r: r.stop_strings.extend([MARKER, ""])),
    ("stop_strings[0]", "258 bytes", lambda r: r.stop_strings.extend(["\u00e9" * 129])),
    ("stop_token_ids", "65 ids, the limit is 64", lambda r: r.stop_token_ids.extend(range(65))),
    ("stop_token_ids[1]", "0 to 511", lambda r: r.stop_token_ids.extend([1, 512])),
    ("stop_token_ids[0]", "0 to 511", lambda r: r.stop_token_ids.extend([-1])),
    ("logprobs", "more than 20", lambda r: setattr(r, "logprobs", 21)),
    ("sampling.temperature", "finite", sampling(temperature=float("nan"))),
    ("sampling.temperature", "finite", sampling(temperature=float("inf"))),
    ("sampling.temperature", "below the range 0 to 100", sampling(temperature=-0.1)),
    ("sampling.temperature", "above the range 0 to 100", sampling(temperature=1e4)),
    ("sampling.top_p", "above 0", sampling(top_p=0.0)),
    ("sampling.top_p", "below", sampling(top_p=-1.0)),
    ("sampling.top_p", "above", sampling(top_p=1.01)),
    ("sampling.top_p", "finite", sampling(top_p=float("nan"))),
    ("sampling.top_k", "below the range 0", sampling(top_k=-1)),
    ("sampling.top_k", "above", sampling(top_k=1 << 31)),
    ("sampling.min_p", "above", sampling(min_p=1.5)),
    ("sampling.min_p", "finite", sampling(min_p=float("-inf"))),
    ("sampling.repetition_penalty", "below the range 0.01 to 10", sampling(repetition_penalty=0.0)),
    ("sampling.repetition_penalty", "above", sampling(repetition_penalty=11.0)),
    ("sampling.presence_penalty", "above the range -2 to 2", sampling(presence_penalty=2.5)),
    ("sampling.frequency_penalty", "below the range -2 to 2", sampling(frequency_penalty=-2.5)),
    ("sampling.logit_bias", "0 to 511", sampling(logit_bias={512: 1.0})),
    ("sampling.logit_bias", "0 to 511", sampling(logit_bias={-1: 1.0})),
    ("sampling.logit_bias", "finite", sampling(logit_bias={1: float("nan")})),
    ("sampling.logit_bias", "above", sampling(logit_bias={1: 101.0})),
    ("sampling.logit_bias", "1025 entries, the limit is 1024", sampling(logit_bias=dict.fromkeys(range(1025), 0.0))),
    ("sampling.max_tokens", "below the range 0", sampling(max_tokens=-1)),
    ("sampling.max_tokens", "above", sampling(max_tokens=(1 << 31) - 1)),
    ("constraint", "is empty", lambda r: r.constraint.SetInParent()),
    ("constraint.regex", "cannot be compiled", lambda r: setattr(r.constraint, "regex", f"({MARKER}")),
    ("constraint.choices[1]", "none or more", lambda r: r.constraint.choices.choices.extend([MARKER, ""])),
    ("sampling.max_tokens", "above", sampling(max_tokens=(1 << 63) - 1)),
    ("sampling.max_tokens", "below", sampling(max_tokens=-(1 << 63))),
    ("sampling.min_tokens", "below", sampling(min_tokens=-1)),
    ("sampling.min_tokens", "above max_tokens", sampling(max_tokens=3, min_tokens=4)),
    ("sampling.n", "below the range 1 to 8", sampling(n=0)),
    ("sampling.n", "above the range 1 to 8", sampling(n=9)),
    ("sampling.n", "below", sampling(n=-1)),
]  # fmt: skip


@pytest.mark.parametrize(("where", "change"), UNSUPPORTED)
def test_what_is_not_implemented_is_refused_by_name(where: str, change: Change) -> None:
    with pytest.raises(Unsupported) as caught:
        parse(request(change))
    message = told(caught.value)
    assert (message.where, message.kind) == (where, pb.ERROR_KIND_UNSUPPORTED)
    assert MARKER not in f"{message}{caught.value!r}"


@pytest.mark.parametrize(("where", "problem", "change"), INVALID)
def test_what_is_out_of_its_bounds_is_refused_with_the_limit(where: str, problem: str, change: Change) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(request(change))
    message = told(caught.value)
    assert (message.where, message.kind) == (where, pb.ERROR_KIND_INVALID_REQUEST)
    assert problem in message.message
    assert MARKER not in f"{message}{caught.value!r}"


def test_an_unknown_model_is_refused_without_its_name() -> None:
    with pytest.raises(ModelNotFound) as caught:
        parse(request(lambda r: setattr(r, "model", MARKER)))
    assert told(caught.value).kind == pb.ERROR_KIND_MODEL_NOT_FOUND
    assert MARKER not in str(caught.value)


@pytest.mark.parametrize("name", [MARKER, "Formal", "formal ", "forma", " "])
def test_an_unknown_adapter_is_refused_without_its_name(name: str) -> None:
    with pytest.raises(ModelNotFound) as caught:
        parse(request(lambda r: setattr(r, "adapter", name)))
    error = told(caught.value)
    assert (error.kind, error.where) == (pb.ERROR_KIND_MODEL_NOT_FOUND, "adapter")
    assert error.message == "is none of the model's adapters"


def test_a_model_without_adapters_has_none_of_any_name() -> None:
    plain = Offer("tiny", 512, True, OFFER.template_parameters)
    with pytest.raises(ModelNotFound):
        parse(request(lambda r: setattr(r, "adapter", "formal")), plain)
    assert parse(request(), plain).adapter == ""


def test_a_known_adapter_is_taken_and_changes_nothing_else() -> None:
    found = parse(request(lambda r: setattr(r, "adapter", "formal")))
    assert found.adapter == "formal"
    assert found.prompt == parse(request()).prompt


def test_a_chat_needs_a_chat_template() -> None:
    with pytest.raises(Unsupported, match="no chat template"):
        parse(request(), Offer("tiny", 512, False, OFFER.template_parameters))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff",
        b"\x32\x05abc",  # a field that ends beyond the message
        b"\x0a\x02\xff\xfe",  # request_id that is not UTF-8
        b"\x32\x02\xc3\x28",  # raw_text that is not UTF-8
        b"\x32\x03\xed\xa0\x80",  # a lone surrogate
        b"\x22\x08\x0a\x06\x12\x04\x0a\x02\xff\xff",  # chat.messages[0].parts[0].text that is not UTF-8
        b"\x5a\x01\x80",  # a stop string that is not UTF-8
        b"\x2a\x06\x12\x04\x0a\x02\xff\xff",  # the name of a value that is not UTF-8
    ],
)
def test_what_is_no_request_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(data)
    assert "not an InferenceRequest" in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "extra",
    [
        b"\xf2\x06\x02ab",  # field 110
        b"\x80\x06\x01",  # field 96
        b"\x22\x05\x0a\x03\xa0\x06\x01",  # within chat.messages[0]
        b"\x52\x03\xa0\x06\x01",  # within sampling
    ],
)
def test_a_field_that_the_contract_does_not_have_is_refused(extra: bytes) -> None:
    with pytest.raises(InvalidRequest, match="bytes in fields that the contract does not have"):
        parse(request().SerializeToString() + extra)


def test_an_oversized_request_is_refused_unparsed() -> None:
    with pytest.raises(InvalidRequest, match="more than 100 bytes"):
        parse_request(b"\xff" * 101, OFFER, max_bytes=100)


def test_defaults_are_filled_in() -> None:
    found = parse(request())
    assert found.prompt == ChatPrompt((Message("user", MARKER),))
    assert found.logprobs is None
    wanted = found.sampling
    assert (wanted.temperature, wanted.top_p, wanted.top_k, wanted.min_p) == (1.0, 1.0, 0, 0.0)
    assert (wanted.repetition_penalty, wanted.presence_penalty, wanted.frequency_penalty) == (1.0, 0.0, 0.0)
    assert (wanted.seed, wanted.max_tokens, wanted.min_tokens, wanted.ignore_eos, wanted.n) == (None, None, 0, False, 1)


@pytest.mark.parametrize(
    ("temperature", "taken"), [(0.0, 0.0), (1e-45, 0.0), (1e-7, 0.0), (1e-4, 1e-4), (100.0, 100.0)]
)
def test_a_temperature_too_small_to_divide_by_is_greedy(temperature: float, taken: float) -> None:
    assert parse(request(sampling(temperature=temperature))).sampling.temperature == pytest.approx(taken)


@pytest.mark.parametrize("top_p", [1e-9, 1.0])
def test_extremes_of_top_p_are_taken(top_p: float) -> None:
    assert parse(request(sampling(top_p=top_p))).sampling.top_p == pytest.approx(top_p)


def test_bounds_themselves_are_taken() -> None:
    found = parse(
        request(
            sampling(
                repetition_penalty=0.01, presence_penalty=-2.0, max_tokens=0, min_tokens=0, n=8, seed=(1 << 64) - 1
            ),
            lambda r: r.stop_strings.extend(["x" * 256] * 16),
            lambda r: r.stop_token_ids.extend([0, 511]),
            lambda r: setattr(r, "logprobs", 0),
            lambda r: setattr(r, "request_id", " ~" * 64),
            lambda r: setattr(r, "model", "tiny"),
            lambda r: setattr(r, "padding", bytes(9)),
            tool_choice(none=True),
        )
    )
    assert (found.sampling.max_tokens, found.sampling.n, found.sampling.seed) == (0, 8, (1 << 64) - 1)
    assert found.stop_token_ids == (0, 511)
    assert found.logprobs == 0


def test_a_top_k_beyond_the_vocabulary_keeps_all_of_it() -> None:
    assert parse(request(sampling(top_k=(1 << 31) - 1))).sampling.top_k == 512


def test_the_parts_of_a_message_are_one_text() -> None:
    def change(r: pb.InferenceRequest) -> None:
        r.chat.messages[0].parts.add(text="b")
        r.chat.messages.add(role=pb.ROLE_ASSISTANT)
        r.chat.messages.add(role=pb.ROLE_SYSTEM).parts.add(text="")

    found = parse(request(change))
    assert found.prompt == ChatPrompt((Message("user", f"{MARKER}b"), Message("assistant", ""), Message("system", "")))


def test_other_prompts_are_taken_as_they_are() -> None:
    assert parse(pb.InferenceRequest(raw_text="")).prompt == RawPrompt("")
    prompt = pb.TemplatePrompt(template_id="greet", values={"name": MARKER})
    assert parse(pb.InferenceRequest(template_prompt=prompt)).prompt == ValuesPrompt("greet", {"name": MARKER})


def test_no_representation_shows_what_a_request_holds() -> None:
    found = parse(request(lambda r: r.stop_strings.append(MARKER)))
    assert MARKER not in f"{found!r}{found.prompt!r}{found.sampling!r}"


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=60))
def test_any_bytes_are_a_request_or_a_typed_refusal(data: bytes) -> None:
    refusal: InvalidRequest | None = None
    try:
        parse(data)
    except InvalidRequest as refused:
        refusal = refused
    assert refusal is None or len(told(refusal).SerializeToString()) < limits.RESPONSE_BUCKETS[3]
