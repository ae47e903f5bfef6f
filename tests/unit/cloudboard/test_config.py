"""cloudboardd's configuration: what cannot work does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tie.cloudboard.config import CloudboardConfig
from tie.contracts.errors import ConfigError
from tie.servicekit import config


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("pool_size = 0", "pool_size"),
        ("pool_size = 65", "max_pairs"),
        ("max_streams = 10", "max_streams"),
        ("setup_timeout_s = -1", "setup_timeout_s"),
        ("key_rotation_s = 90000", "key_rotation_s"),
        ("colour = 1", "colour"),
        ('pool_size = "3"', "pool_size"),
    ],
)
def test_a_setting_that_cannot_work_is_named(tmp_path: Path, line: str, match: str) -> None:
    path = tmp_path / "node.toml"
    path.write_text(f"[cloudboardd]\n{line}\n")
    with pytest.raises(ConfigError, match=match):
        config.load(path, "cloudboardd", CloudboardConfig)


def test_the_defaults_are_the_contract_s(tmp_path: Path) -> None:
    path = tmp_path / "node.toml"
    path.write_text("")
    loaded = config.load(path, "cloudboardd", CloudboardConfig)
    assert (loaded.pool_size, loaded.max_pairs, loaded.max_streams) == (3, 64, 256)
    assert (loaded.setup_timeout_s, loaded.upload_timeout_s, loaded.request_timeout_s) == (10, 60, 900)
    assert (loaded.key_rotation_s, loaded.key_lifetime_s, loaded.key_grace_s) == (43200, 86400, 300)
    assert loaded.idle_timeout_s == 30
