"""What a request's own Lark grammar may not do: name special tokens, import, or set the matcher's options.

A special token in an answer could end a turn and begin another; templates alone write them.
"""

from __future__ import annotations

import re
from typing import Final

from tie.constraints.errors import NotEnforceable

_QUOTED: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"|/(?:[^/\\\n]|\\.)+/|//[^\n]*|\#[^\n]*')
_REFUSED: Final = (
    ("%", "has a directive: none is taken"),
    ("<", "names a special token: none may be in an answer"),
    ("@", "refers to another grammar: there is none"),
)


def check(where: str, text: str) -> None:
    """Raises NotEnforceable."""
    bare = _QUOTED.sub(" ", text)
    for sign, problem in _REFUSED:
        if sign in bare:
            raise NotEnforceable(where, problem)
