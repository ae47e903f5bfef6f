"""What the host is made of, each by itself: configuration, command line, log, leftovers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from tie.afm_runtime import leftovers, triton_command
from tie.afm_runtime.config import AfmRuntimeConfig
from tie.afm_runtime.triton_log import TritonLog
from tie.contracts import triton_io
from tie.contracts.errors import ConfigError
from tie.contracts.paths import RunPaths
from tie.servicekit import logs


@pytest.fixture
def config(tmp_path: Path) -> AfmRuntimeConfig:
    made = AfmRuntimeConfig(triton_dir=str(tmp_path), python=str(tmp_path / "bin" / "python3"))
    for path in (made.server, made.backends / "x", made.repository / "x", Path(made.python)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return made


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = RunPaths(tmp_path / "run")
    made.triton_socket.parent.mkdir(parents=True)
    return made


@pytest.mark.parametrize(
    ("key", "value"),
    [("threads", 0), ("block_count", -1), ("kv_bytes", 0), ("step_token_budget", 0), ("max_running", 0),
     ("max_queued", -1), ("ready_timeout_s", 0.0), ("stop_timeout_s", 1e9)],
)  # fmt: skip
def test_values_out_of_range_stop_the_start_by_name(config: AfmRuntimeConfig, key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=key):
        replace(config, **{key: value}).check()  # type: ignore[arg-type]


def test_a_budget_below_the_rows_would_starve_someone(config: AfmRuntimeConfig) -> None:
    with pytest.raises(ConfigError, match="below max_running"):
        replace(config, step_token_budget=63).check()
    config.check()


def test_missing_files_stop_the_start(config: AfmRuntimeConfig) -> None:
    config.server.unlink()
    with pytest.raises(ConfigError, match="tritonserver does not exist"):
        config.check()


def test_triton_is_closed_down_on_its_command_line(config: AfmRuntimeConfig, paths: RunPaths) -> None:
    command = triton_command.arguments(config, paths, "prefix_")
    restricted = ",".join(triton_io.RESTRICTED_PROTOCOLS)
    for wanted in (
        "--allow-http=false", "--allow-metrics=false", "--model-control-mode=none", "--disable-auto-complete-config",
        f"--grpc-address=unix:{paths.triton_socket_stem}", "--log-verbose=0",
        "--backend-config=python,shm-region-prefix-name=prefix_",
    ):  # fmt: skip
        assert wanted in command
    (key,) = [part for part in command if part.startswith("--grpc-restricted-protocol=")]
    assert key.startswith(f"--grpc-restricted-protocol={restricted}:k=")
    assert key not in triton_command.arguments(config, paths, "prefix_")


def test_the_stub_gets_the_configured_python_and_nothing_else(
    config: AfmRuntimeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environment = triton_command.environment(config, Path("node.toml"))
    assert environment["PATH"].startswith(str(Path(config.python).parent) + ":")
    assert set(environment) == {"PATH", "HOME", "LANG", "TIE_NODE_CONFIG"}


def test_regions_have_the_protected_prefix_and_a_random_rest(paths: RunPaths, tmp_path: Path) -> None:
    first, second = leftovers.new_shm_prefix(paths), leftovers.new_shm_prefix(paths)
    assert first != second
    assert first.startswith(leftovers.shm_prefix(paths))
    assert first.startswith("triton_python_backend_shm_region_")
    assert leftovers.shm_prefix(RunPaths(tmp_path / "other")) != leftovers.shm_prefix(paths)


def test_only_what_this_run_directory_left_is_removed(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shm, temporary = tmp_path / "shm", tmp_path / "tmp"
    monkeypatch.setattr(leftovers, "SHM", shm)
    monkeypatch.setattr(leftovers, "TEMPORARY", temporary)
    ours = [shm / f"{leftovers.new_shm_prefix(paths)}1", paths.triton_socket, paths.runtime_socket]
    others = [shm / f"{triton_io.SHM_PREFIX}0123456789ab_x", shm / "sem.something", temporary / "file"]
    for path in (*ours, *others):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    for name in ("python_env_a", "python_env_full", "python_env_other"):
        (temporary / name).mkdir()
    (temporary / "python_env_full" / "file").touch()
    leftovers.note_environments(paths, {"python_env_a", "python_env_full"})
    assert leftovers.clean(paths) == 4
    assert [path for path in ours if path.exists()] == []
    assert all(path.exists() for path in others)
    assert sorted(path.name for path in temporary.glob("python*")) == ["python_env_full", "python_env_other"]
    assert leftovers.clean(paths) == 0


@pytest.mark.parametrize("text", ["not json", '["../../etc"]', '["python_env_../x"]', "[1, null]", '{"a": 1}'])
def test_a_note_that_was_tampered_with_removes_nothing(paths: RunPaths, text: str) -> None:
    paths.triton_socket.with_name(leftovers.NOTE).write_text(text)
    assert leftovers.clean(paths) == 0


@pytest.fixture
def unconfigured_logs() -> Iterator[None]:
    """A configured logger keeps the standard error that it found, here one that ends with the test."""
    yield
    structlog.reset_defaults()


@pytest.mark.usefixtures("unconfigured_logs")
def test_tritons_text_passes_only_before_requests_can_come(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("test")
    log = TritonLog()
    line = b'E1201 02:40:43.123456 17 model_lifecycle.cc:654] "marker"\n'
    log.feed(line[:20])
    log.feed(line[20:])
    assert "marker" in capsys.readouterr().err
    log.is_serving = True
    log.feed(line + b"marker without a shape\n" + b"x" * 20_000)
    said = capsys.readouterr().err
    assert "marker" not in said
    assert json.loads(said.splitlines()[0])["location"] == "model_lifecycle.cc:654"
    log.feed(b'\nI1201 02:40:43.1 17 a.cc:1] "chatter"\n')
    assert "chatter" not in capsys.readouterr().err


@pytest.mark.usefixtures("unconfigured_logs")
def test_our_own_lines_pass_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("test")
    log = TritonLog()
    log.is_serving = True
    log.feed(b'{"event": "request.ended"}\n')
    assert capsys.readouterr().err == '{"event": "request.ended"}\n'
