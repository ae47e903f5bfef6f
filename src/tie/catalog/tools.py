"""How a model writes tool calls: the table `[tools]` of `bundle.toml`.

One call is `begin`, white space, a JSON object of the tool's name and its arguments, the same white space, `end`. A
bundle without this table serves no requests with tools.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from tie.catalog.tables import Table

FORMAT: Final = "json"
_SHOWN: Final = "!-~\u00a1-\ud7ff\ue000-\uffff"  # a character of the basic plane that prints
MARKER_PATTERN: Final = re.compile(rf"[{_SHOWN}](?:[ {_SHOWN}]{{0,62}}[{_SHOWN}])?")
_SPACE_PATTERN: Final = re.compile(r"[ \n]{0,8}")
_KEY_PATTERN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")


@dataclass(frozen=True, slots=True)
class ToolsDescription:
    """`begin` and `end` are the spelling of a control token, or plain text."""

    begin: str
    end: str
    inside: str = ""
    """White space between a marker and the JSON."""
    between: str = ""
    """White space between two calls."""
    name_key: str = "name"
    arguments_key: str = "arguments"

    def to_table(self) -> dict[str, Any]:
        """The `[tools]` table."""
        return {
            "format": FORMAT,
            "begin": self.begin,
            "end": self.end,
            "inside": self.inside,
            "between": self.between,
            "name_key": self.name_key,
            "arguments_key": self.arguments_key,
        }


def parse_tools(table: Table) -> ToolsDescription:
    table.choice("format", FORMAT)
    tools = ToolsDescription(
        begin=table.text("begin", MARKER_PATTERN),
        end=table.text("end", MARKER_PATTERN),
        inside=table.text("inside", _SPACE_PATTERN) if table.has("inside") else "",
        between=table.text("between", _SPACE_PATTERN) if table.has("between") else "",
        name_key=table.text("name_key", _KEY_PATTERN),
        arguments_key=table.text("arguments_key", _KEY_PATTERN),
    )
    if tools.name_key == tools.arguments_key:
        raise table.refusal("arguments_key", "is the same as name_key")
    table.finish()
    return tools
