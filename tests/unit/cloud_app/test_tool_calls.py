"""However an answer is cut into tokens, and however it ends, it comes apart into the same text and calls (fault 5)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import pytest
from doubles.tool_model import BY_TEXT, BY_TOKEN, CLOSE, FORMS, MIXED, OPEN, OTHER, TooLong, sample
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.cloud_app.json_end import JsonEnd
from tie.cloud_app.tool_calls import CallArguments, CallBegun, CallSplitter, Piece
from tie.constraints import tools
from tie.constraints.call_form import CallForm
from tie.constraints.tools import CallableTool
from tie.contracts.errors import PeerError
from tie.prompting.detokenising import Utf8Stream

NAMES = ("get", "get_all")
Unit = int
"""A byte, or the id of a control token."""
Told = tuple[str, list[tuple[str, str]]]
"""Text, and the name and arguments of each call."""


def splitter(form: CallForm) -> CallSplitter:
    return CallSplitter(form, NAMES, Utf8Stream(drops_leading_space=False))


def units(form: CallForm, *parts: str | tuple[str, str]) -> list[Unit]:
    """Text as it is, calls as (name, arguments)."""
    made: list[Unit] = []
    for part in parts:
        if isinstance(part, str):
            made += part.encode()
        else:
            name, arguments = part
            made += _marker(form.begin) + list(form.head(name).encode())
            made += list(arguments.encode()) + list(form.tail.encode()) + _marker(form.end)
    return made


def _marker(marker: int | str) -> list[Unit]:
    return [marker] if isinstance(marker, int) else list(marker.encode())


def tokens(answer: Sequence[Unit], cuts: Iterable[int]) -> Iterator[bytes | int]:
    """Cut at these places, and around control tokens."""
    around = {n + side for n, unit in enumerate(answer) if unit > 255 for side in (0, 1)}
    places = sorted({0, len(answer), *around, *(cut for cut in cuts if cut <= len(answer))})
    for begin, end in pairwise(places):
        yield answer[begin] if answer[begin] > 255 else bytes(answer[begin:end])


def split(form: CallForm, pieces_of: Iterable[bytes | int]) -> tuple[Told, CallSplitter]:
    to = splitter(form)
    found: list[Piece] = []
    for token in pieces_of:
        found += to.control(token) if isinstance(token, int) else to.feed(token)
    return told([*found, *to.end()]), to


def told(pieces: Iterable[Piece]) -> Told:
    text, calls, ids = "", list[tuple[str, str]](), set[str]()
    for piece in pieces:
        match piece:
            case str():
                assert piece
                text += piece
            case CallBegun(index, call_id, name):
                assert index == len(calls)
                assert call_id.startswith("call_")
                assert call_id not in ids
                ids.add(call_id)
                calls.append((name, ""))
            case CallArguments(index, more):
                assert more
                assert index == len(calls) - 1
                calls[index] = (calls[index][0], calls[index][1] + more)
    return text, calls


def reference(form: CallForm, answer: Sequence[Unit]) -> Told:
    """The same, found in the whole answer at once, with private characters for markers that spell nothing."""
    raw = "".join(chr(unit) if unit < 256 else f"\ue000{unit}\ue001" for unit in answer)
    begin, end = (_as_text(marker) for marker in (form.begin, form.end))
    text, calls = "", list[tuple[str, str]]()
    while (at := raw.find(begin)) >= 0:
        text, raw = text + raw[:at], raw[at + len(begin) :]
        head = next((form.head(name) for name in NAMES if raw.startswith(form.head(name))), None)
        if head is None:
            raw = ""
            break
        raw = raw[len(head) :]
        arguments = raw if (over := _object_end(raw)) is None else raw[:over]
        calls.append((json.loads(head[head.index(":") + 1 : head.index(",")]), _decoded(arguments)))
        raw = raw[len(arguments) :]
        closing = form.tail + end
        if not raw.startswith(closing):
            raw = ""
            break
        raw = raw.removeprefix(closing).removeprefix(form.between)
    return _decoded(text) + _decoded(raw), calls


def _as_text(marker: int | str) -> str:
    return f"\ue000{marker}\ue001" if isinstance(marker, int) else marker


def _decoded(text: str) -> str:
    return text.encode("latin-1").decode("utf-8", "replace")


def _object_end(text: str) -> int | None:
    try:
        return json.JSONDecoder().raw_decode(text)[1]
    except ValueError:
        return None


ANSWERS: list[tuple[str | tuple[str, str], ...]] = [
    ("only text",),
    (("get", "{}"),),
    ("Let me see. ", ("get", '{"a": 1}')),
    (
        ("get", '{"a": "}\\n</tool_call>"}'),
        "\n",
        ("get_all", '{"b": ["{\\"", {"c": "\\\\"}]}'),
        " done \u00e9\U0001f600",
    ),
    ("\u00e9\U0001f600 <tool_ <<tool_call <", ("get_all", '{"\u00e9": "\U0001f600"}'), "\n\n and <tool_cal"),
    ("[CALL [CAL", ("get", "{}"), ("get", "{}"), "[/CALL]"),
]
CASES = [(form, units(form, *parts)) for form in FORMS.values() for parts in ANSWERS]


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_what_no_grammar_lets_pass_is_the_runtimes_fault_and_is_not_shown(form: CallForm) -> None:
    to = splitter(form)
    found = [piece for unit in _marker(form.begin) for piece in _fed(to, unit)]
    with pytest.raises(PeerError):
        list(to.feed(b'\n{"name": "rm", '))
    assert [*found, *to.end()] == []


def test_a_call_that_is_not_closed_as_it_must_be_is_the_runtimes_fault() -> None:
    for form in (BY_TEXT, BY_TOKEN):
        to = splitter(form)
        for unit in units(form, ("get", "{}"))[: -len(_marker(form.end)) - 1]:
            list(_fed(to, unit))
        with pytest.raises(PeerError):
            list(to.feed(b"} and more"))


def _fed(to: CallSplitter, unit: Unit) -> Iterator[Piece]:
    return to.feed(bytes((unit,))) if unit < 256 else to.control(unit)


@pytest.mark.parametrize(("form", "answer"), CASES)
def test_every_cut_gives_the_same_pieces(form: CallForm, answer: list[Unit]) -> None:
    expected = reference(form, answer)
    for size in (1, 2, 3, 7, len(answer)):
        assert split(form, tokens(answer, range(0, len(answer), size)))[0] == expected
    for first in range(len(answer)):  # every way to cut it in two
        assert split(form, tokens(answer, (first,)))[0] == expected


@settings(max_examples=300, deadline=None)
@given(case=st.sampled_from(CASES), cuts=st.sets(st.integers(1, 120), max_size=40), kept=st.integers(0, 200))
def test_any_cut_and_any_end_give_what_the_whole_gives(
    case: tuple[CallForm, list[Unit]], cuts: set[int], kept: int
) -> None:
    form, answer = case[0], case[1][:kept]
    assert split(form, tokens(answer, cuts))[0] == reference(form, answer)


@pytest.mark.parametrize("kept", range(len("<tool_call>")))
def test_half_a_marker_at_the_end_is_text(kept: int) -> None:
    half = "so <tool_call>"[: 3 + kept]
    (text, calls), to = split(BY_TEXT, [half.encode()])
    assert (text, calls) == (half, [])
    assert not to.has_called


def test_what_only_begins_like_a_marker_is_shown_at_once() -> None:
    to = splitter(BY_TEXT)
    assert list(to.feed(b"a <tool_")) == ["a "]
    assert list(to.feed(b"x")) == ["<tool_x"]
    assert list(to.feed(b"<<tool_call")) == ["<"]
    assert list(to.feed(b"<")) == ["<tool_call"]
    assert list(to.end()) == ["<"]


def test_a_marker_that_is_a_token_is_none_when_it_is_spelled_out() -> None:
    assert split(BY_TOKEN, [b"<tool_call>\nno call"])[0] == ("<tool_call>\nno call", [])
    assert split(BY_TOKEN, [b"a", OTHER, CLOSE, b"b"])[0] == ("ab", [])


def test_a_call_is_told_of_once_its_name_is_known_and_its_arguments_as_they_come() -> None:
    to = splitter(BY_TOKEN)
    assert list(to.feed(b"hm")) == ["hm"]
    assert list(to.control(OPEN)) == []
    assert list(to.feed(b'\n{"name": "get"')) == []
    (begun,) = to.feed(b', "arguments": ')
    assert isinstance(begun, CallBegun)
    assert (begun.index, begun.name) == (0, "get")
    assert list(to.feed(b'{"a"')) == [CallArguments(0, '{"a"')]
    assert list(to.feed(b": {}}}\n")) == [CallArguments(0, ": {}}")]
    assert not to.has_called
    assert list(to.control(CLOSE)) == []
    assert to.has_called
    assert list(to.feed(b"\n")) == []
    assert list(to.control(OPEN)) == []
    assert not to.has_called


def test_a_call_that_is_cut_stays_as_far_as_it_came() -> None:
    assert split(BY_TOKEN, [OPEN, b'\n{"name": "ge'])[0] == ("", [])
    half = "\U0001f600".encode()[:2]
    found, to = split(BY_TOKEN, [OPEN, BY_TOKEN.head("get").encode(), b'{"a": "' + half])
    assert found == ("", [("get", '{"a": "\N{REPLACEMENT CHARACTER}')])
    assert not to.has_called


def test_white_space_between_calls_is_no_text_and_elsewhere_is() -> None:
    answer = units(BY_TEXT, "\n", ("get", "{}"), "\n", ("get", "{}"), "\n\n", ("get", "{}"), "\n")
    assert split(BY_TEXT, tokens(answer, ()))[0] == ("\n\n", [("get", "{}")] * 3)
    assert split(MIXED, tokens(units(MIXED, ("get", "{}"), "\n"), ()))[0][0] == "\n"


def test_careless_answers_come_apart_as_their_grammar_put_them_together() -> None:
    ready = [CallableTool(name, tools.read_parameters("", ""), "") for name in NAMES]
    for form in FORMS.values():
        compiled, calls = tools.at_will(form, ready), 0
        for seed in range(40):
            try:
                answer = sample(compiled, seed, form)
            except TooLong:
                continue
            found, _ = split(form, tokens(answer, range(0, len(answer), 1 + seed % 5)))
            assert found == reference(form, answer)
            calls += len(found[1])
        assert calls > 10


@given(
    value=st.dictionaries(st.text(), st.recursive(st.text(), lambda inner: st.lists(inner), max_leaves=5)),
    rest=st.binary(max_size=5),
    size=st.integers(1, 9),
)
def test_the_end_of_an_object_is_found_whatever_it_holds(value: dict[str, object], rest: bytes, size: int) -> None:
    written = json.dumps(value, ensure_ascii=False).encode()
    data, end, taken = written + rest, JsonEnd(), 0
    while not end.is_over:
        taken += end.feed(data[taken : taken + size])
    assert taken == len(written)
