"""The small files of a Hugging Face directory, read with a bound. Symlinks are followed: its cache is made of them."""

import re
from pathlib import Path
from typing import Any, Final

from tie.bundling.errors import SourceRejected
from tie.catalog import strict_json

MAX_JSON_BYTES: Final = 4 * 1024 * 1024
MAX_TOKENIZER_BYTES: Final = 128 * 1024 * 1024
_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,200}")


def read_bytes(directory: Path, name: str, most: int) -> bytes | None:
    """None where there is no such file."""
    path = directory / name
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceRejected(name, f"cannot be read: {error.strerror}") from error
    if len(data) > most:
        raise SourceRejected(name, f"is longer than {most} bytes")
    return data


def read_table(directory: Path, name: str, most: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """A JSON object, without the keys that are null: to most of these files null means "not set"."""
    values = read_object(directory, name, most)
    return None if values is None else set_keys(values)


def set_keys(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def read_object(directory: Path, name: str, most: int = MAX_JSON_BYTES) -> dict[str, Any] | None:
    """None where there is no such file."""
    data = read_bytes(directory, name, most)
    if data is None:
        return None
    values = strict_json.loads(name, data)
    if not isinstance(values, dict):
        raise SourceRejected(name, "is not an object")
    return values


def check_plain_name(file: str, name: Any) -> str:
    """A file name that another file gives: it must stay in the directory."""
    if not isinstance(name, str) or _PLAIN_NAME.fullmatch(name) is None:
        raise SourceRejected(file, "names a file outside its own directory, or not by a plain name")
    return name
