"""What an adapter's configuration may say: plain LoRA. The rest is refused by the name of its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from doubles.tiny_adapter import PEFT_CONFIG
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.bundling.errors import SourceRejected
from tie.bundling.peft_config import PeftConfig, read_config
from tie.catalog.errors import CatalogError

PLAIN = {**PEFT_CONFIG, "r": 8, "lora_alpha": 16}
Q, DOWN = "model.layers.0.self_attn.q_proj", "model.layers.11.mlp.down_proj"


def read(directory: Path, **changes: Any) -> PeftConfig:
    values = {**PLAIN, **changes}
    (directory / "adapter_config.json").write_text(json.dumps(values))
    return read_config(directory)


def refusal(directory: Path, **changes: Any) -> str:
    with pytest.raises(SourceRejected) as rejected:
        read(directory, **changes)
    assert rejected.value.file == f"{directory.name}/adapter_config.json"
    return rejected.value.fault


NOT_PLAIN: dict[str, Any] = {
    "use_dora": True,
    "modules_to_save": ["lm_head"],
    "fan_in_fan_out": True,
    "lora_bias": True,
    "layer_replication": [[0, 4], [2, 5]],
    "trainable_token_indices": [1, 2],
    "target_parameters": ["mlp.experts.gate_up_proj"],
    "use_qalora": True,
    "alora_invocation_tokens": [5, 6],
    "megatron_config": {"hidden_size": 4},
    "arrow_config": {"top_k": 2},
}


@pytest.mark.parametrize("key", NOT_PLAIN)
def test_what_is_not_plain_lora_is_refused_by_name(tmp_path: Path, key: str) -> None:
    assert refusal(tmp_path, **{key: NOT_PLAIN[key]}) == f"key {key} is set: only plain LoRA is imported"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"bias": "all"}, "key bias must be 'none', nothing else is supported"),
        ({"bias": "lora_only"}, "key bias must be 'none', nothing else is supported"),
        ({"peft_type": "LOHA"}, "key peft_type must be 'LORA', nothing else is supported"),
        ({"peft_type": None}, "key peft_type is missing"),
        ({"init_lora_weights": "pissa"}, "key init_lora_weights must be one of gaussian, eva, orthogonal"),
        ({"init_lora_weights": "pissa_niter_4"}, "key init_lora_weights must be one of gaussian, eva, orthogonal"),
        ({"init_lora_weights": "olora"}, "key init_lora_weights must be one of gaussian, eva, orthogonal"),
        ({"init_lora_weights": "loftq"}, "key init_lora_weights must be one of gaussian, eva, orthogonal"),
        ({"use_something_new": True}, "key use_something_new is not known"),
        ({"use_rslora": "yes"}, "key use_rslora must be true or false"),
        ({"r": None}, "key r is missing"),
        ({"r": 0}, "key r is outside 1..512"),
        ({"r": 513}, "key r is outside 1..512"),
        ({"r": 8.0}, "key r must be an integer"),
        ({"r": True}, "key r must be an integer"),
        ({"lora_alpha": None}, "key lora_alpha is missing"),
        ({"lora_alpha": 0}, "key lora_alpha is outside 1e-06..1e+06"),
        ({"lora_alpha": -16}, "key lora_alpha is outside 1e-06..1e+06"),
        ({"lora_alpha": "16"}, "key lora_alpha must be a number"),
        ({"rank_pattern": [1]}, "key rank_pattern is not a table of up to 4096 entries"),
        ({"rank_pattern": {"q_proj": 0}}, "key rank_pattern holds something other than numbers in 1..512"),
        ({"rank_pattern": {"q_proj": 4.0}}, "key rank_pattern holds something other than numbers in 1..512"),
        ({"rank_pattern": {"q_proj": True}}, "key rank_pattern holds something other than numbers in 1..512"),
        ({"alpha_pattern": {"q_proj": 0}}, "key alpha_pattern holds something other than numbers in 1e-06..1e+06"),
        (
            {"alpha_pattern": {".*(a+)+$": 1}},
            "key alpha_pattern holds a pattern that is more than the path of a module, or its end",
        ),
    ],
)
def test_a_value_that_cannot_be_kept_is_refused_by_its_key(tmp_path: Path, changes: Any, fault: str) -> None:
    assert refusal(tmp_path, **changes) == fault


@pytest.mark.parametrize("text", ["", "[]", "{", '{"r": 8, "r": 8}', '{"r": NaN}', "[" * 100_000])
def test_a_file_that_is_no_plain_json_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "adapter_config.json").write_text(text)
    with pytest.raises(CatalogError, match=r"/adapter_config\.json: "):
        read_config(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceRejected, match=r"none/adapter_config\.json: is missing"):
        read_config(tmp_path / "none")


@pytest.mark.parametrize("unset", [None, False, "", [], {}])
def test_a_key_that_is_not_set_asks_for_nothing(tmp_path: Path, unset: Any) -> None:
    changes = dict.fromkeys([*NOT_PLAIN, "use_something_new", "rank_pattern", "use_rslora"], unset)
    assert read(tmp_path, **changes) == read(tmp_path)


@pytest.mark.parametrize("value", [True, False, "gaussian", "eva", "orthogonal"])
def test_how_a_pair_began_does_not_matter_where_the_model_was_left_alone(tmp_path: Path, value: Any) -> None:
    assert read(tmp_path, init_lora_weights=value) == read(tmp_path)


def test_what_tells_of_the_training_is_left_alone(tmp_path: Path) -> None:
    told = {
        "task_type": "CAUSAL_LM",
        "lora_dropout": 0.1,
        "layers_to_transform": [0, 1],
        "target_modules": "all-linear",
    }
    assert read(tmp_path, **told) == read(tmp_path)


def test_the_scale_is_alpha_over_the_rank_or_its_root(tmp_path: Path) -> None:
    assert read(tmp_path).scale_of(Q) == 2.0
    assert read(tmp_path, use_rslora=True).scale_of(Q) == 16 / 8**0.5
    assert read(tmp_path, lora_alpha=0.5).scale_of(Q) == 1 / 16


def test_patterns_change_rank_and_alpha_of_what_they_end(tmp_path: Path) -> None:
    config = read(tmp_path, rank_pattern={"self_attn.q_proj": 4, "down_proj": 32}, alpha_pattern={"q_proj$": 2})
    assert (config.rank_of(Q), config.scale_of(Q)) == (4, 0.5)
    assert (config.rank_of(DOWN), config.scale_of(DOWN)) == (32, 0.5)
    assert config.rank_of("model.layers.0.self_attn.k_proj") == 8


def test_a_pattern_matches_whole_names_and_the_first_wins(tmp_path: Path) -> None:
    config = read(tmp_path, rank_pattern={"attn.q_proj": 1, "1.mlp.down_proj": 2, f"^{Q}": 3, "q_proj": 4})
    assert config.rank_of(Q) == 3
    assert config.rank_of(f"more.{Q}") == 4, "a pattern that begins a path matches no longer one"
    assert config.rank_of("model.layers.1.mlp.down_proj") == 2
    assert config.rank_of(DOWN) == 8


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from([*PLAIN, "extra"]), st.none() | st.booleans() | st.integers() | st.text()))
def test_any_configuration_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, changes: Any) -> None:
    directory = tmp_path_factory.getbasetemp() / "any"
    directory.mkdir(exist_ok=True)
    try:
        config = read(directory, **changes)
    except CatalogError:
        return
    assert config.scale_of(Q) > 0
