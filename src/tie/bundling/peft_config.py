"""`adapter_config.json` as PEFT writes it: by what each pair of a LoRA adapter is scaled.

Plain LoRA only: a key that would make another computation of the same matrices is refused by name, and so is one that
nobody here knows, unless it is not set (null, false or empty). What only tells how it was trained is left alone.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tie.bundling.errors import SourceRejected
from tie.bundling.hf_files import read_object
from tie.catalog.adapters import MAX_RANK
from tie.catalog.tables import Table

CONFIG: Final = "adapter_config.json"
MAX_ALPHA: Final = 1e6
MAX_PATTERNS: Final = 4096

_TRAINING: Final = frozenset(
    {
        # of the run that made it
        "auto_mapping", "base_model_name_or_path", "inference_mode", "lora_dropout", "peft_version", "revision",
        "task_type", "megatron_core", "corda_config", "eva_config", "loftq_config", "lora_ga_config",
        # which matrices it has: the tensors tell
        "exclude_modules", "layers_pattern", "layers_to_transform", "target_modules",
        # without effect while the keys that they belong to are not set
        "ensure_weight_tying", "qalora_group_size",
    }
)  # fmt: skip
_NOT_PLAIN: Final = (
    "alora_invocation_tokens", "arrow_config", "fan_in_fan_out", "layer_replication", "lora_bias", "megatron_config",
    "modules_to_save", "target_parameters", "trainable_token_indices", "use_dora", "use_qalora",
)  # fmt: skip
# Others (pissa, olora, corda, loftq) change the model's own weights as well, and fit no other ones.
_INITIALISATIONS: Final = ("gaussian", "eva", "orthogonal")
_PATTERN: Final = re.compile(r"\^?[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*\$?")

Patterns = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class PeftConfig:
    rank: int
    alpha: float
    ranks: Patterns
    alphas: Patterns
    is_rank_stabilised: bool

    def rank_of(self, module: str) -> int:
        """`module` is the path in the model that was trained, as in "model.layers.0.self_attn.q_proj"."""
        return int(_matching(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        rank = self.rank_of(module)
        return _matching(self.alphas, module, self.alpha) / (math.sqrt(rank) if self.is_rank_stabilised else rank)


def read_config(directory: Path) -> PeftConfig:
    file = f"{directory.name}/{CONFIG}"
    found = read_object(directory.parent, file)
    if found is None:
        raise SourceRejected(file, "is missing")
    values = {key: value for key, value in found.items() if key not in _TRAINING and not _is_unset(value)}
    for key in _NOT_PLAIN:
        if key in values:
            raise SourceRejected(file, f"key {key} is set: only plain LoRA is imported")
    ranks = _patterns(file, values, "rank_pattern", MAX_RANK)
    alphas = _patterns(file, values, "alpha_pattern", MAX_ALPHA)
    table = Table(file, values, reject=SourceRejected)
    table.only("peft_type", "LORA")
    if table.has("bias"):
        table.only("bias", "none")
    _check_initialisation(table)
    config = PeftConfig(
        rank=table.integer("r", 1, MAX_RANK),
        alpha=table.number("lora_alpha", 1 / MAX_ALPHA, MAX_ALPHA),
        ranks=ranks,
        alphas=alphas,
        is_rank_stabilised=table.has("use_rslora") and table.flag("use_rslora"),
    )
    table.finish()
    return config


def _is_unset(value: Any) -> bool:
    return value is None or value is False or value in ("", [], {})


def _check_initialisation(table: Table) -> None:
    if table.holds("init_lora_weights", True):
        table.only("init_lora_weights", True)
    elif table.has("init_lora_weights"):
        table.choice("init_lora_weights", *_INITIALISATIONS)


def _patterns(file: str, values: dict[str, Any], key: str, most: float) -> Patterns:
    """Takes the key out. PEFT reads a pattern as a regular expression for the end of a path; ours are plain paths."""
    patterns = values.pop(key, {})
    if not isinstance(patterns, dict) or len(patterns) > MAX_PATTERNS:
        raise SourceRejected(file, f"key {key} is not a table of up to {MAX_PATTERNS} entries")
    if not all(_PATTERN.fullmatch(pattern) for pattern in patterns):
        raise SourceRejected(file, f"key {key} holds a pattern that is more than the path of a module, or its end")
    low = 1 if key == "rank_pattern" else 1 / MAX_ALPHA
    for value in patterns.values():
        is_number = type(value) is int or (type(value) is float and key == "alpha_pattern")
        if not is_number or not low <= value <= most:
            raise SourceRejected(file, f"key {key} holds something other than numbers in {low:g}..{most:g}")
    return patterns


def _matching(patterns: Patterns, module: str, default: float) -> float:
    """Of the first pattern that the module's path is or ends with."""
    for pattern, value in patterns.items():
        path = pattern.removeprefix("^").removesuffix("$")
        if module == path or (not pattern.startswith("^") and module.endswith(f".{path}")):
            return value
    return default
