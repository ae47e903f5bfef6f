"""A model that cares for nothing: any byte that a grammar allows is as likely as any other."""

from __future__ import annotations

import numpy as np

from tie.afm_runtime.decoding.grammar import Vocabulary

EOS = 256


class ByteTokens:
    """A token for each byte, and one for the end."""

    def __getitem__(self, token: int) -> bytes:
        return bytes([token]) if token < EOS else b""


VOCABULARY = Vocabulary(ByteTokens(), EOS + 1, [EOS])


class TooLong(Exception):
    """It did not come to an end."""


def sample(compiled: str, seed: int, most: int = 4000, favours_end: float = 0.5) -> str:
    """One answer. Where it may end it does so with this likelihood."""
    rng, matcher, answer = np.random.default_rng(seed), VOCABULARY.matcher(compiled), bytearray()
    while not matcher.is_complete:
        if len(answer) > most:
            raise TooLong
        ids = np.flatnonzero(np.unpackbits(matcher.allowed().view(np.uint8), bitorder="little"))
        assert len(ids), "a dead end"
        may_end = EOS in ids
        if may_end and (len(ids) == 1 or rng.random() < favours_end):
            break
        some = [token for token in ids.tolist() if token != EOS]
        closing = [token for token in some if token in b'"]},']
        token = int(rng.choice(closing if closing and rng.random() < 0.3 else some))
        matcher.feed(token)
        answer.append(token)
    return answer.decode("utf-8")
