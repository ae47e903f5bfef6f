"""The table `[tools]`: each key is refused by name."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace

import pytest
from doubles.tiny_model import tiny_model

from tie.bundling.toml import render_description
from tie.catalog.description import BundleDescription, KvDescription, TokenizerDescription, parse_description
from tie.catalog.errors import BundleRejected
from tie.catalog.tools import ToolsDescription

TOOLS = ToolsDescription("<tool_call>", "</tool_call>", inside="\n", between="\n")
TOKENIZER = TokenizerDescription("byte_bpe", 1, False, (2, 0))
DESCRIBED = BundleDescription("tiny", "1", tiny_model(), TOKENIZER, "chat", KvDescription(16, "bf16"), TOOLS)


def with_line(key: str, line: str) -> bytes:
    head, table = render_description(DESCRIBED).decode().split("[tools]\n")
    replaced, count = re.subn(rf"(?m)^{key} = .*$", lambda _: line, table, count=1)
    assert count == 1, f"the table has {key}"
    return f"{head}[tools]\n{replaced}".encode()


@pytest.mark.parametrize(
    ("key", "line", "fault"),
    [
        ("format", 'format = "xml"', "tools.format must be one of json"),
        ("format", "", "tools.format is missing"),
        ("begin", "", "tools.begin is missing"),
        ("begin", 'begin = ""', "tools.begin must be a string that matches"),
        ("begin", 'begin = " <call>"', "tools.begin must be a string that matches"),
        ("begin", 'begin = "<call>\\n"', "tools.begin must be a string that matches"),
        ("begin", f'begin = "{"x" * 65}"', "tools.begin must be a string that matches"),
        ("end", "end = 7", "tools.end must be a string that matches"),
        ("end", 'end = "\\u0000"', "tools.end must be a string that matches"),
        ("inside", 'inside = "x"', "tools.inside must be a string that matches"),
        ("between", f'between = "{" " * 9}"', "tools.between must be a string that matches"),
        ("name_key", 'name_key = "a b"', "tools.name_key must be a string that matches"),
        ("arguments_key", 'arguments_key = "name"', "tools.arguments_key is the same as name_key"),
        ("arguments_key", 'arguments_key = "a"\nparameters = "b"', "tools.parameters is not known"),
    ],
)
def test_a_wrong_key_is_refused_by_name(key: str, line: str, fault: str) -> None:
    with pytest.raises(BundleRejected) as rejected:
        parse_description(with_line(key, line))
    assert fault in str(rejected.value)


def test_tools_without_a_chat_template_are_refused() -> None:
    with pytest.raises(BundleRejected, match="key tools is there, but no chat template"):
        parse_description(render_description(replace(DESCRIBED, chat_template=None)))


@pytest.mark.parametrize(
    "tools",
    [
        None,
        TOOLS,
        ToolsDescription(
            "<\uff5ctool\u2581begin\uff5c>", 'quoted " \\ back', name_key="tool", arguments_key="parameters"
        ),
        ToolsDescription("x" * 64, "y", inside=" \n" * 4),
    ],
)
def test_what_is_written_is_read_back(tools: ToolsDescription | None) -> None:
    written = render_description(replace(DESCRIBED, tools=tools))
    assert parse_description(written).tools == tools
    assert ("tools" in tomllib.loads(written.decode())) == (tools is not None)


def test_white_space_may_be_left_out() -> None:
    found = parse_description(with_line("inside", "").replace(b'between = "\\n"\n', b"")).tools
    assert found == ToolsDescription("<tool_call>", "</tool_call>")
