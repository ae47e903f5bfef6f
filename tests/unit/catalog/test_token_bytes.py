from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tie.catalog.errors import BundleRejected
from tie.catalog.token_bytes import TokenBytes, render

GOOD = render([b"ab", b"", b"c"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        GOOD[:3],
        GOOD[:10],
        GOOD[:-1],
        GOOD + b"x",
        struct.pack("<5I", 3, 1, 2, 2, 3) + b"abc",
        struct.pack("<5I", 3, 0, 3, 2, 3) + b"abc",
        struct.pack("<5I", 3, 0, 2, 2, 2**32 - 1) + b"abc",
        struct.pack("<5I", 4, 0, 2, 2, 3) + b"abc",
    ],
)
def test_a_table_that_does_not_add_up_is_refused(data: bytes) -> None:
    with pytest.raises(BundleRejected, match=r"token_bytes\.bin"):
        TokenBytes(data, 3)


@given(st.lists(st.binary(max_size=5), max_size=20))
def test_what_was_written_is_read(spellings: list[bytes]) -> None:
    table = TokenBytes(render(spellings), len(spellings))
    assert [table[token] for token in range(len(table))] == spellings


@given(st.binary(max_size=60), st.integers(0, 8))
def test_any_bytes_are_a_table_or_refused(data: bytes, vocab_size: int) -> None:
    try:
        table = TokenBytes(data, vocab_size)
    except BundleRejected:
        return
    assert b"".join(table[token] for token in range(vocab_size)) == data[4 * (vocab_size + 2) :]
