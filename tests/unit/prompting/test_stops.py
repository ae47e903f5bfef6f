"""No byte of a stop string is shown, and no other byte is kept (fault 4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.prompting.stops import StopFilter


def shown(stops: Sequence[bytes], *parts: bytes) -> list[bytes]:
    """What each part lets out, and the end's rest."""
    stop_filter = StopFilter(stops)
    return [*(stop_filter.feed(part) for part in parts), stop_filter.end()]


def reference(stops: Sequence[bytes], text: bytes) -> tuple[bytes, bool]:
    """By definition: the match that is complete first, and of those the longest."""
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            return text[: end - max(map(len, ended))], True
    return text, False


@pytest.mark.parametrize(
    ("stops", "parts", "expected"),
    [
        ([b"DEFGHIJ"], [b"DEF", b"G", b"HI", b"J"], [b"", b"", b"", b"", b""]),
        ([b"DEFGHIJ"], [b"ABCDEF", b"GHIJKL"], [b"ABC", b"", b""]),
        ([b"STOP"], [b"say STOP and go on"], [b"say ", b""]),  # what follows in the same token is not shown
        ([b"ab", b"abc"], [b"xab", b"c"], [b"x", b"", b""]),  # one is the other's beginning
        ([b"abc", b"b"], [b"abc"], [b"a", b""]),  # the shorter is complete first
        ([b"abc", b"c"], [b"zabc"], [b"z", b""]),  # both end here: the longer
        ([b"abab"], [b"aba", b"bab"], [b"", b"", b""]),
        ([b"abab"], [b"aba", b"c"], [b"", b"abac", b""]),  # a near miss is let out in the same step
        ([b"abab"], [b"aabab"], [b"a", b""]),
        ([b"aab"], [b"aaa", b"b"], [b"a", b"", b""]),
        ([b"xyz"], [b"xy"], [b"", b"xy"]),  # the text ends before it is one
        ([b"longer than all of it"], [b"longer", b" than"], [b"", b"", b"longer than"]),
        (["\u00e9".encode()], [b"caf\xc3", b"\xa9!"], [b"caf", b"", b""]),  # across a character
        (["\u00e9".encode()], [b"caf\xc3", b"\xa8!"], [b"caf", b"\xc3\xa8!", b""]),
        ([], [b"a", b"b"], [b"a", b"b", b""]),
    ],
)
def test_what_is_shown(stops: list[bytes], parts: list[bytes], expected: list[bytes]) -> None:
    assert shown(stops, *parts) == expected


def test_nothing_passes_after_a_stop() -> None:
    stop_filter = StopFilter([b"x"])
    assert stop_filter.feed(b"ax") == b"a"
    assert stop_filter.is_stopped
    assert stop_filter.feed(b"more") == b""
    assert stop_filter.end() == b""
    assert stop_filter.released == 1


def test_a_match_that_ends_too_early_is_text_and_one_that_ends_later_counts() -> None:
    stop_filter = StopFilter([b"abab"])
    assert stop_filter.feed(b"abab", may_stop=False) == b"ab"
    assert stop_filter.feed(b"ab") == b""  # overlaps the one that did not count
    assert stop_filter.is_stopped
    assert stop_filter.released == 2


def test_the_runtimes_word_on_where_a_stop_begins_is_obeyed_as_far_as_it_can_be() -> None:
    stop_filter = StopFilter([b"abcd"])
    assert stop_filter.feed(b"xabc") == b"x"
    assert stop_filter.cut(3) == b"ab"
    assert stop_filter.end() == b""
    assert StopFilter([b"abcd"]).cut(99) == b""


@settings(max_examples=400, deadline=None)
@given(
    stops=st.lists(st.text("ab", min_size=1, max_size=5).map(str.encode), max_size=4),
    text=st.text("abc", max_size=24).map(str.encode),
    cuts=st.lists(st.integers(0, 24), max_size=6),
)
def test_the_cuts_between_tokens_change_nothing(stops: list[bytes], text: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(text)]
    parts = [text[start:end] for start, end in pairwise(edges)]
    expected, is_stopped = reference(stops, text)
    stop_filter = StopFilter(stops)
    seen = b""
    for part in parts:
        seen += stop_filter.feed(part)
        if stop_filter.is_stopped:
            break
        fed = text[: text.index(seen) + len(seen)]
        assert expected.startswith(fed) or not is_stopped
    assert seen + stop_filter.end() == expected
    assert stop_filter.is_stopped == is_stopped


@settings(max_examples=200, deadline=None)
@given(stop=st.text("ab", min_size=2, max_size=6).map(str.encode), text=st.text("ab", max_size=20).map(str.encode))
def test_no_more_is_held_than_may_become_a_stop(stop: bytes, text: bytes) -> None:
    if stop in text:
        return
    released = StopFilter([stop]).feed(text)
    held = text[len(released) :]
    longest = next((n for n in range(len(stop) - 1, 0, -1) if text.endswith(stop[:n])), 0)
    assert len(held) == longest
