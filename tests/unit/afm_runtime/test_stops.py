from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tie.afm_runtime.decoding.stops import Reason, Stop, StopRules, StopWatch


def outcome(
    pieces: Sequence[bytes],
    stops: Sequence[bytes],
    *,
    min_tokens: int = 0,
    max_tokens: int = 1000,
    ending: Sequence[int] = (),
) -> tuple[int, Stop] | None:
    """Feeds token i spelling pieces[i]: how many were taken, and why it stopped."""
    watch = StopWatch(StopRules(max_tokens, min_tokens, frozenset(ending), tuple(stops)), list(pieces))
    for token in range(len(pieces)):
        if (stop := watch.feed(token)) is not None:
            return token + 1, stop
    return None


def string(index: int, offset: int) -> Stop:
    return Stop(Reason.STOP_STRING, index, offset)


def test_a_stop_over_four_tokens_begins_at_byte_zero() -> None:
    assert outcome([b"DEF", b"G", b"HI", b"J"], [b"DEFGHIJ"]) == (4, string(0, 0))


def test_a_near_miss_is_no_stop_and_does_not_hide_a_later_one() -> None:
    assert outcome([b"DEF", b"G", b"HX", b"DEFG", b"HI", b"J!"], [b"DEFGHIJ"]) == (6, string(0, 6))


def test_of_two_where_one_begins_the_other_the_shorter_completes_first() -> None:
    assert outcome([b"a", b"b", b"c"], [b"abc", b"ab"]) == (2, string(1, 0))


def test_the_first_to_complete_wins_also_within_one_token() -> None:
    assert outcome([b"xabcdz"], [b"abcd", b"bc"]) == (1, string(1, 2))


def test_of_two_that_end_together_the_one_that_begins_first_wins() -> None:
    assert outcome([b"xabc"], [b"bc", b"abc"]) == (1, string(1, 1))


def test_a_stop_that_overlaps_itself() -> None:
    assert outcome([b"aba", b"aba", b"b"], [b"abab"]) == (3, string(0, 3))
    assert outcome([b"a"] * 9, [b"aaaa"]) == (4, string(0, 0))


def test_a_stop_within_one_token_with_text_after_it() -> None:
    assert outcome([b"one<end>two"], [b"<end>"]) == (1, string(0, 3))


def test_a_stop_that_begins_inside_a_character() -> None:
    smile = "\N{GRINNING FACE}".encode()
    assert outcome([b"x" + smile[:1], smile[1:3], smile[3:]], [smile[2:]]) == (3, string(0, 3))


def test_a_stop_longer_than_the_output_never_matches() -> None:
    assert outcome([b"ab", b"cd"], [b"abcdefgh"]) is None


def test_special_tokens_spell_nothing_and_break_nothing() -> None:
    assert outcome([b"a", b"", b"b"], [b"ab"]) == (3, string(0, 0))
    assert outcome([b"", b"", b""], [b"a"]) is None


def test_an_ending_token_needs_min_tokens_before_it() -> None:
    assert outcome([b"a", b"b", b"c"], [], ending=[1]) == (2, Stop(Reason.STOP_TOKEN))
    assert outcome([b"a", b"b", b"c"], [], ending=[1], min_tokens=2) is None
    watch = StopWatch(StopRules(9, 2, frozenset({7}), ()), {})
    assert watch.barred == {7}
    watch.feed(1)
    assert watch.barred == {7}
    watch.feed(1)
    assert watch.barred == frozenset()


def test_a_stop_string_within_min_tokens_is_passed_and_the_next_one_counts() -> None:
    assert outcome([b"ab", b"ab", b"ab"], [b"ab"], min_tokens=2) == (2, string(0, 2))


def test_length_ends_whatever_else_does_not() -> None:
    assert outcome([b"a"] * 5, [b"b"], max_tokens=3) == (3, Stop(Reason.LENGTH))
    assert outcome([b"a"] * 5, [], max_tokens=3, min_tokens=3) == (3, Stop(Reason.LENGTH))


def test_a_token_that_ends_and_is_the_last_one_ends_as_itself() -> None:
    assert outcome([b"a", b"b"], [], max_tokens=2, ending=[1]) == (2, Stop(Reason.STOP_TOKEN))
    assert outcome([b"a", b"b"], [b"b"], max_tokens=2) == (2, string(0, 1))


pieces = st.lists(st.text("ab", max_size=4).map(str.encode), max_size=12)
stop_strings = st.lists(st.text("ab", min_size=1, max_size=5).map(str.encode), min_size=1, max_size=4)


@given(pieces, stop_strings)
def test_the_match_does_not_depend_on_where_tokens_are_cut(cut: list[bytes], stops: list[bytes]) -> None:
    text = b"".join(cut)
    whole = outcome([bytes([byte]) for byte in text], stops)
    found = outcome(cut, stops)
    assert (found and found[1]) == (whole and whole[1])


@given(pieces, stop_strings)
def test_the_match_is_the_first_to_complete(cut: list[bytes], stops: list[bytes]) -> None:
    text = b"".join(cut)
    ends = [
        (end, end - len(stop), index)
        for index, stop in enumerate(stops)
        for end in range(len(stop), len(text) + 1)
        if text[end - len(stop) : end] == stop
    ]
    found = outcome(cut, stops)
    assert (None if found is None else found[1]) == (string(min(ends)[2], min(ends)[1]) if ends else None)
