from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tie.contracts.errors import ConfigError
from tie.node.settings import UpOptions, compose, to_toml, write


def with_config(tmp_path: Path, options: UpOptions, text: str) -> UpOptions:
    file = tmp_path / "user.toml"
    file.write_text(text)
    return UpOptions(options.run_dir, options.bundle, file, options.threads, options.listen)


def test_a_run_without_a_bundle_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tie import"):
        compose(UpOptions(tmp_path, tmp_path / "absent"), {})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[cloudboard]\nlisten = 'x'", "unknown section 'cloudboard'"),
        ("cloudboardd = 3", "not a table"),
        ("[node\n", "not a readable TOML"),
        ("[node]\nbundle_dir = '/absent'", None),
    ],
)
def test_a_users_file_that_cannot_be_used_is_refused(
    tmp_path: Path, options: UpOptions, text: str, expected: str | None
) -> None:
    options = with_config(tmp_path, options, text)
    if expected is None:  # the command line's bundle wins
        assert compose(options, {})["node"]["bundle_dir"] == str(options.bundle)
        return
    with pytest.raises(ConfigError, match=expected):
        compose(options, {})


def test_an_unreadable_users_file_is_refused(options: UpOptions) -> None:
    with pytest.raises(ConfigError, match="not a readable"):
        compose(UpOptions(options.run_dir, options.bundle, Path("/absent.toml")), {})


def test_a_value_that_is_no_setting_is_refused(tmp_path: Path, options: UpOptions) -> None:
    document = compose(with_config(tmp_path, options, "[cloud_app]\nlimits = ['a']"), {})
    with pytest.raises(ConfigError, match=r"\[cloud_app\] limits"):
        to_toml(document)


def test_the_users_file_wins_over_defaults_and_the_command_line_over_both(tmp_path: Path, options: UpOptions) -> None:
    text = "[cloudboardd]\nlisten = 'a:1'\npool_size = 9\n[afm_runtime]\nthreads = 3\n"
    options = with_config(tmp_path, options, text)
    document = compose(UpOptions(options.run_dir, options.bundle, options.config, 2, None), {})
    assert document["cloudboardd"] == {"listen": "a:1", "pool_size": 9}
    assert document["afm_runtime"]["threads"] == 2
    assert document["node"]["run_dir"] == str(options.run_dir)


def test_the_bundle_of_the_environment_is_the_default(options: UpOptions) -> None:
    assert options.bundle is not None
    document = compose(UpOptions(options.run_dir), {"TIE_BUNDLE": str(options.bundle)})
    assert document["node"]["bundle_dir"] == str(options.bundle)


def test_the_file_is_for_its_owner_only(tmp_path: Path, options: UpOptions) -> None:
    target = tmp_path / "node.toml"
    write(compose(options, {}), target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    write(compose(options, {}), target)  # replaces the earlier one


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.dictionaries(
        st.sampled_from(["a", "b_s", "c"]),
        st.one_of(
            st.booleans(),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(allow_nan=False),
            st.text("a\u00e9\"\\\n\t\x7f\x00\x1b'#\u20ac\U0001f600"),
            st.lists(st.integers(-5, 5)),
        ),
    )
)
def test_what_is_written_is_read_back(table: dict[str, bool | int | float | str | list[int]]) -> None:
    assert tomllib.loads(to_toml({"node": table})) == {"node": table}
