"""A configuration that is not exactly right stops the start, and says where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tie.contracts.errors import ConfigError
from tie.servicekit.config import NodeConfig, load


@dataclass(frozen=True, slots=True)
class Sample:
    size: int
    rate: float = 1.0
    name: str = "x"
    strict: bool = False
    uids: tuple[int, ...] = ()


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "node.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[cloud_app]\nsize = 1\nsizes = 2", "unknown key 'sizes'"),
        ("[cloud_app]\nsize = '1'", "expected int, found str"),
        ("[cloud_app]\nsize = true", "expected int, found bool"),
        ("[cloud_app]\nsize = 1\nstrict = 1", "expected bool, found int"),
        ("[cloud_app]\nsize = 1\nuids = ['a']", "expected a list of integers"),
        ("[cloud_app]\n", "key 'size' is missing"),
        ("[clouds]\n", "unknown section 'clouds'"),
        ("cloud_app = 3", "is not a table"),
        ("[cloud_app\n", "not a readable TOML file"),
    ],
)
def test_refusals_name_the_place(tmp_path: Path, text: str, expected: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=expected) as caught:
        load(path, "cloud_app", Sample)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a readable TOML file"):
        load(tmp_path / "none.toml", "node", NodeConfig)


def test_values_arrive_typed_and_defaults_hold(tmp_path: Path) -> None:
    path = written(tmp_path, "[cloud_app]\nsize = 7\nrate = 2\nuids = [1, 2]")
    assert load(path, "cloud_app", Sample) == Sample(size=7, rate=2.0, uids=(1, 2))
