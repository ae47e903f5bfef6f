"""A model that cares for nothing, with markers for tool calls: control tokens and plain text."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from tie.afm_runtime.decoding.grammar import Vocabulary
from tie.afm_runtime.forwarding import Mask
from tie.catalog.tools import ToolsDescription
from tie.constraints.call_form import CallForm

EOS, OPEN, CLOSE, OTHER = 256, 257, 258, 259
DESCRIBED: Final = ToolsDescription("<tool_call>", "</tool_call>", inside="\n", between="\n")
BY_TOKEN: Final = CallForm(DESCRIBED, OPEN, CLOSE)
BY_TEXT: Final = CallForm(DESCRIBED, "<tool_call>", "</tool_call>")
MIXED: Final = CallForm(ToolsDescription("[CALL]", "[/CALL]", name_key="tool", arguments_key="args"), OPEN, "[/CALL]")
FORMS: Final = {"by token": BY_TOKEN, "by text": BY_TEXT, "mixed": MIXED}

_CLOSING: Final = np.frombuffer(b'"]},', np.uint8)


class Tokens:
    """A token for each byte, one for the end, two markers and a control token that nothing allows."""

    def __getitem__(self, token: int) -> bytes:
        return bytes([token]) if token < EOS else b""


VOCABULARY: Final = Vocabulary(Tokens(), OTHER + 1, [EOS])


class TooLong(Exception):
    """It did not come to an end."""


def allowed(compiled: str, tokens: Sequence[int]) -> set[int]:
    """What may follow these tokens. Raises GrammarFault where they are not allowed themselves."""
    matcher = VOCABULARY.matcher(compiled)
    for token in tokens:
        matcher.feed(token)
    return _ids(matcher.allowed())


def sample(compiled: str, seed: int, form: CallForm, *, most: int = 4000) -> list[int]:
    """Tokens of one answer, without its end. It begins calls often, closes JSON gladly, and ends where it may."""
    rng, matcher, answer = random.Random(seed), VOCABULARY.matcher(compiled), list[int]()
    begin = [form.begin] if isinstance(form.begin, int) else list(form.begin.encode())
    wanted: list[int] = []
    while not matcher.is_complete:
        if len(answer) > most:
            raise TooLong
        may = _flags(matcher.allowed())
        ids = np.flatnonzero(may)
        assert len(ids), "a dead end"
        if may[EOS] and (len(ids) == 1 or rng.random() < (0.5 if len(ids) == 2 else 0.05)):
            break
        if not wanted and may[begin[0]] and rng.random() < 0.1:
            wanted = [*begin]
        closing = ids[np.isin(ids, _CLOSING)] if rng.random() < 0.3 else ids[:0]
        token = wanted[0] if wanted and may[wanted[0]] else EOS
        while token == EOS:
            token = int(rng.choice(closing if len(closing) else ids))
        wanted = wanted[1:] if wanted[:1] == [token] else []
        matcher.feed(token)
        answer.append(token)
    return answer


def calls_in(tokens: Sequence[int], form: CallForm) -> list[str]:
    """What stands between markers, found the plain way: markers are private characters, no JSON holds them."""
    spelled = {form.begin: "\ue000", form.end: "\ue001"}
    text = bytes(b for t in tokens for b in (bytes([t]) if t < EOS else spelled[t].encode())).decode()
    for marker, sign in spelled.items():
        if isinstance(marker, str):
            text = text.replace(marker, sign)
    return re.findall("\ue000(.*?)\ue001", text, re.DOTALL)


def _ids(mask: Mask) -> set[int]:
    return set(np.flatnonzero(_flags(mask)).tolist())


def _flags(mask: Mask) -> npt.NDArray[np.uint8]:
    return np.unpackbits(mask.view(np.uint8), bitorder="little")
