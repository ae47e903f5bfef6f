"""How a model writes tool calls, as far as its chat template says so.

One form is known by sight: a JSON object with `name` and `arguments` between `<tool_call>` and `</tool_call>`. Other
forms between the same markers (XML, pairs of tags) are not taken for it.
"""

import re
from typing import Final

from tie.bundling.errors import ImportRefused
from tie.catalog.tools import MARKER_PATTERN, ToolsDescription

_BEGIN, _END = "<tool_call>", "</tool_call>"
_KEYS: Final = (re.compile(r'\\?"name\\?"'), re.compile(r'\\?"arguments\\?"'))
_OTHER_FORMS: Final = ("<function=", "<arg_key>", "<parameter=")
_LINE_BREAK: Final = re.compile(re.escape(_BEGIN) + r"(?:\n|\\n)")
"""In a template's own text, or escaped in one of its strings."""


def tools_of(template: str | None, markers: tuple[str, str] | None) -> ToolsDescription | None:
    """By what the template holds, or with the markers that were asked for. Raises ImportRefused."""
    if markers is not None:
        return _with_markers(template, *markers)
    if template is None or _BEGIN not in template or _END not in template:
        return None
    if not all(key.search(template) for key in _KEYS) or any(sign in template for sign in _OTHER_FORMS):
        return None
    space = "\n" if _LINE_BREAK.search(template) else ""
    return ToolsDescription(_BEGIN, _END, inside=space, between=space)


def _with_markers(template: str | None, begin: str, end: str) -> ToolsDescription:
    if template is None:
        raise ImportRefused("tool markers are of no use: the source has no chat template that could tell of tools")
    for marker in (begin, end):
        if MARKER_PATTERN.fullmatch(marker) is None:
            raise ImportRefused("a tool marker must have 1 to 64 printable characters, and no space at its ends")
    space = "\n" if f"{begin}\n" in template or f"{begin}\\n" in template else ""
    return ToolsDescription(begin, end, inside=space, between=space)
