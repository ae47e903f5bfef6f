"""`bundle.toml` as text. The standard library reads TOML but does not write it; our few kinds of value need little."""

import json
from typing import Any

from tie.catalog.description import FORMAT, BundleDescription


def render_description(described: BundleDescription) -> bytes:
    tokenizer: dict[str, Any] = {"kind": described.tokenizer.kind, "file": described.tokenizer.file}
    if described.tokenizer.bos_token_id is not None:
        tokenizer["bos_token_id"] = described.tokenizer.bos_token_id
    tokenizer |= {"add_bos": described.tokenizer.add_bos, "eos_token_ids": list(described.tokenizer.eos_token_ids)}
    values: dict[str, Any] = {
        "format": FORMAT,
        "name": described.name,
        "release": described.release,
        "model": described.model.to_table(),
        "tokenizer": tokenizer,
    }
    if described.chat_template is not None:
        values["chat"] = {"template": described.chat_template}
    if described.tools is not None:
        values["tools"] = described.tools.to_table()
    values["kv"] = {"block_size_tokens": described.kv.block_size_tokens, "dtype": described.kv.dtype}
    return _render(values, "").lstrip("\n").encode("ascii")


def _render(table: dict[str, Any], prefix: str) -> str:
    """Plain keys first, then the tables, as TOML requires."""
    lines = [f"{key} = {_value(value)}\n" for key, value in table.items() if not isinstance(value, dict)]
    for key, value in table.items():
        if isinstance(value, dict):
            name = f"{prefix}{key}"
            lines.append(f"\n[{name}]\n{_render(value, name + '.')}")
    return "".join(lines)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return json.dumps(value)  # a basic string of TOML, for the plain characters that the description allows
        case list():
            return f"[{', '.join(_value(item) for item in value)}]"
    raise TypeError(f"no TOML for {type(value).__name__}")
