import json
import stat
from pathlib import Path

import pytest
import typer
from click.testing import Result
from doubles.gguf_file import STRING, tiny_gguf
from doubles.tiny_adapter import make_peft_directory, tiny_pairs
from doubles.tiny_model import TEST_KEY, make_tiny_bundle, tiny_model
from typer.testing import CliRunner

from tie.bundling.cli import register
from tie.bundling.signing import create_key
from tie.catalog import load_trusted_keys, open_bundle
from tie.catalog.attention import AttentionKind
from tie.catalog.rope import Rope

APP = typer.Typer(pretty_exceptions_enable=False)
register(APP)


@pytest.fixture(autouse=True)
def own_configuration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.gguf").write_bytes(tiny_gguf(tiny_model(layer_count=1)).to_bytes())


def run(*arguments: str) -> Result:
    return CliRunner().invoke(APP, list(arguments))


def test_a_refusal_is_one_line_on_stderr_and_exit_code_1(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes((tmp_path / "tiny.gguf").read_bytes()[:5000])
    result = run("import", "tiny.gguf", "bundle")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == "refused: tiny.gguf: ends in its header, at 5000 bytes"
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("import", "none.gguf", "bundle"), "refused: none.gguf: cannot be opened: No such file or directory"),
        (("import", "config", "bundle", "--unsigned"), "refused: config: cannot be opened: No such file or directory"),
        (("import", "tiny.gguf", "tiny.gguf"), "refused: tiny.gguf: exists and is not a directory"),
        (("import", "tiny.gguf", "b", "--name", "Not Plain"), "refused: the name must match [a-z0-9][a-z0-9._-]{0,63}"),
        (
            ("import", "tiny.gguf", "b", "--sign-with", "no"),
            "refused: no: signing key cannot be read: No such file or directory",
        ),
        (
            ("import", "tiny.gguf", "b", "--adapter", "a=none"),
            "refused: none/adapter_config.json: is missing",
        ),
        (
            ("import", "tiny.gguf", "b", "--adapter", "A=none"),
            "refused: the name of an adapter must match [a-z0-9][a-z0-9._-]{0,63}",
        ),
        (("inspect", "none"), "refused: none: is missing"),
        (("inspect", "."), "refused: manifest.json: is missing"),
    ],
)
def test_refusals_name_what_is_wrong(arguments: tuple[str, ...], line: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == line


@pytest.mark.parametrize(
    "arguments",
    [
        ("import", "tiny.gguf"),
        ("import", "tiny.gguf", "bundle", "--dtype", "int3"),
        ("import", "tiny.gguf", "bundle", "--unsigned", "--sign-with", "key.pem"),
        ("import", "tiny.gguf", "bundle", "--adapter", "directory"),
        ("import", "tiny.gguf", "bundle", "--adapter", "name="),
        ("inspect",),
        ("nothing",),
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: tuple[str, ...]) -> None:
    assert run(*arguments).exit_code == 2


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    result = run("import", "text", "bundle")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        "refused: text: is neither a GGUF file nor a directory with config.json and safetensors",
    )


def test_an_import_signs_with_a_key_that_it_makes_and_trusts(tmp_path: Path) -> None:
    result = run("import", "tiny.gguf", "bundle")
    assert result.exit_code == 0
    assert "made a development signing key" in result.stderr
    assert "bundle: tiny 1, f32" in result.stderr
    assert stat.S_IMODE((tmp_path / "config/tie/bundle-signing.pem").stat().st_mode) == 0o600
    trusted = load_trusted_keys(tmp_path / "config/tie/trusted-bundle-keys")
    with open_bundle("bundle", trusted_keys=trusted) as bundle:
        assert bundle.signed_by == trusted[0]
    again = run("import", "tiny.gguf", "bundle", "--force", "--dtype", "int8", "--name", "mine", "--release", "2.0")
    assert again.exit_code == 0
    assert "made a development" not in again.stderr
    assert "mine 2.0, int8" in again.stderr


def test_a_given_key_signs_and_is_not_trusted_by_that(tmp_path: Path) -> None:
    key = create_key(tmp_path / "release.pem")
    assert run("import", "tiny.gguf", "bundle", "--sign-with", "release.pem").exit_code == 0
    assert not (tmp_path / "config").exists()
    with open_bundle("bundle", trusted_keys=[key.public]):
        pass


def test_an_unsigned_bundle_is_said_to_be_so(tmp_path: Path) -> None:
    result = run("import", "tiny.gguf", "bundle", "--unsigned")
    assert result.exit_code == 0
    assert result.stderr.rstrip().endswith("unsigned")
    assert not (tmp_path / "bundle/manifest.sig").exists()
    shown = json.loads(run("inspect", "bundle", "--json").stdout)
    assert (shown["signature"], shown["is_trusted"]) == ("unsigned", False)


def test_a_bundle_is_shown_with_who_vouches_for_it(tmp_path: Path) -> None:
    make_tiny_bundle(tmp_path / "bundle", dtype="int4", form="int4_min")
    stranger = json.loads(run("inspect", "bundle", "--json").stdout)
    assert stranger["signature"] == "not valid by any trusted key"
    (tmp_path / "keys").write_text(TEST_KEY.public.hex())
    trusted = json.loads(run("inspect", "bundle", "--json", "--trusted-keys", "keys").stdout)
    assert trusted["is_trusted"]
    assert trusted["tensors"]["int4_min"]["count"] == 16
    assert trusted["model"]["hidden_size"] == 64
    table = run("inspect", "bundle").stdout
    assert trusted["identity"] in table.replace("\n", "").replace(" ", "")


def test_adapters_are_imported_and_shown(tmp_path: Path) -> None:
    pairs = tiny_pairs(tiny_model(layer_count=1), 1, matrices=["attn.q", "mlp.up"])
    make_peft_directory(tmp_path / "formal", pairs)
    make_peft_directory(tmp_path / "terse", tiny_pairs(tiny_model(layer_count=1), 2, rank=40))
    result = run("import", "tiny.gguf", "bundle", "--adapter", "b=formal", "--adapter", "a=terse")
    assert result.exit_code == 0, result.stderr
    assert "MB of weights, 2 adapters, identity" in result.stderr
    shown = json.loads(run("inspect", "bundle", "--json").stdout)
    assert list(shown["adapters"]) == ["a", "b"]
    formal = shown["adapters"]["b"]
    assert (formal["matrices"], formal["ranks"]) == (2, [32])
    assert formal["bytes"] == (tmp_path / "bundle/adapters/b/weights.safetensors").stat().st_size
    assert formal["kv_identity"] != shown["kv_identity"]
    assert shown["adapters"]["a"]["ranks"] == [64]
    assert "adapter b" in run("inspect", "bundle").stdout


def test_a_bundle_is_shown_with_what_its_layers_have(tmp_path: Path) -> None:
    make_tiny_bundle(
        tmp_path / "bundle",
        layer_count=6,
        qk_norm=True,
        post_norms=True,
        logit_softcap=30.0,
        layer_pattern=("local", "local", "blind"),
        attention={"local": AttentionKind(8, Rope(10_000.0, 16)), "blind": AttentionKind()},
    )
    shown = run("inspect", "bundle").stdout
    text = " ".join(shown.split())
    for row in (
        "layer pattern 2 local, 1 blind, repeated",
        "local attention window 8, rope theta 10000.0, rotary_dim 16, scaling kind none",
        "blind attention all before, no positions",
        "logit softcap 30.0",
        "with qk norm, post norms",
    ):
        assert row in text
    assert "bias" not in text
    assert "attention scale" not in text
    model = json.loads(run("inspect", "bundle", "--json").stdout)["model"]
    assert (model["qkv_bias"], model["layer_pattern"]) == (False, ["local", "local", "blind"])


def test_a_damaged_bundle_is_not_shown(tmp_path: Path) -> None:
    make_tiny_bundle(tmp_path / "bundle")
    data = bytearray((tmp_path / "bundle/tokenizer.json").read_bytes())
    data[100] ^= 1
    (tmp_path / "bundle/tokenizer.json").write_bytes(data)
    result = run("inspect", "bundle")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1] == "refused: tokenizer.json: does not have the SHA-256 that the manifest says"


def test_tool_calls_are_read_off_the_template_named_or_left_out(tmp_path: Path) -> None:
    source = tiny_gguf(tiny_model(layer_count=1))
    source.values["tokenizer.chat_template"] = (
        STRING,
        '{{ tools }}<tool_call>\n{"name": 1, "arguments": 2}</tool_call>',
    )
    (tmp_path / "calls.gguf").write_bytes(source.to_bytes())
    shown = {}
    for name, options in {
        "seen": (),
        "left": ("--no-tools",),
        "named": ("--tool-markers", "<|tool|>", "</tool_call>"),
    }.items():
        assert run("import", "calls.gguf", name, *options).exit_code == 0
        shown[name] = json.loads(run("inspect", name, "--json").stdout)["tools"]
    assert shown["seen"] == {
        "format": "json",
        "begin": "<tool_call>",
        "end": "</tool_call>",
        "inside": "\n",
        "between": "\n",
        "name_key": "name",
        "arguments_key": "arguments",
    }
    assert shown["left"] is None
    assert (shown["named"]["begin"], shown["named"]["end"]) == ("<|tool|>", "</tool_call>")
    assert "json with name and arguments, <tool_call> … </tool_call>" in run("inspect", "seen").stdout
    assert "not offered" in run("inspect", "left").stdout
    both = run("import", "calls.gguf", "both", "--no-tools", "--tool-markers", "a", "b")
    assert (both.exit_code, (tmp_path / "both").exists()) == (2, False)
    refused = run("import", "calls.gguf", "bad", "--tool-markers", "a", " ")
    assert (refused.exit_code, refused.stderr.count("refused: a tool marker must have")) == (1, 1)
