"""Random LoRA adapters for tiny models: in a bundle, in PEFT's form, or merged into the weights that they bend.

A pair is unscaled and unpadded, as it was "trained": `B A` is what it adds to its matrix.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from doubles.tiny_model import TEST_KEY, Weights

from tie.bundling.packing import unpack
from tie.bundling.quantise import Stored, bf16_to_f32, decode, encode, f32_to_bf16
from tie.bundling.weights_file import PlannedTensor, write_weights
from tie.catalog.adapters import A, B, adaptable
from tie.catalog.description import ModelDescription
from tie.catalog.layout import BLOCK, PANEL, Form
from tie.catalog.manifest import FileEntry, adapter_path, parse_manifest, render_manifest
from tie.catalog.safetensors_header import read_header

F32 = npt.NDArray[np.float32]
ALL = ("attn.q", "attn.k", "attn.v", "attn.o", "mlp.gate", "mlp.up", "mlp.down")


class Pair(NamedTuple):
    a: F32
    b: F32


Pairs = dict[str, Pair]


def tiny_pairs(
    model: ModelDescription, seed: int, *, rank: int = 8, matrices: Iterable[str] = ALL, strength: float = 0.5
) -> Pairs:
    """By stem; what a pair adds is `strength` times as large as what passes through it."""
    random = np.random.default_rng(seed)
    chosen = set(matrices)
    pairs = {}
    for stem, (rows, k) in adaptable(model).items():
        a = random.standard_normal((rank, k), np.float32) / np.float32(k**0.5)
        b = random.standard_normal((rows, rank), np.float32) * np.float32(strength / rank**0.5)
        if stem.split(".", 2)[2] in chosen:
            pairs[stem] = Pair(a, b)
    return pairs


def merged(weights: Weights, pairs: Pairs) -> Weights:
    """The model that the adapter makes of this one."""
    found = dict(weights)
    for stem, (a, b) in pairs.items():
        delta = b.astype(np.float64) @ a.astype(np.float64)
        found[f"{stem}.weight"] = (weights[f"{stem}.weight"] + delta).astype(np.float32)
    return found


def rounded(pairs: Pairs) -> Pairs:
    """To what bf16 can hold."""
    return {stem: Pair(*(bf16_to_f32(f32_to_bf16(values)) for values in pair)) for stem, pair in pairs.items()}


def planned_pairs(pairs: Pairs, form: Form = "f32") -> list[PlannedTensor]:
    """As a bundle has them: filled up with zeros to whole blocks of rank."""
    found = []
    for stem, (a, b) in pairs.items():
        more = -len(a) % BLOCK
        found.append(_planned(stem + A, np.pad(a, ((0, more), (0, 0))), form))
        found.append(_planned(stem + B, np.pad(b, ((0, 0), (0, more))), form))
    return found


def add_adapters(bundle: Path, adapters: Mapping[str, Pairs], form: Form = "f32") -> None:
    """Puts them into a bundle that is there, and signs it anew."""
    for name, pairs in adapters.items():
        path = bundle / adapter_path(name)
        path.parent.mkdir(parents=True)
        write_weights(path, planned_pairs(pairs, form), lambda count: None)
    relist(bundle, *map(adapter_path, adapters))


def read_adapter(fd: int) -> dict[str, F32]:
    """The tensors of an image in f32, in rows (of B those of whole panels)."""
    found = {}
    for name, tensor in read_header("adapter", fd).tensors.items():
        form: Form = "f32" if tensor.dtype == "F32" else "bf16"
        data = np.frombuffer(os.pread(fd, tensor.size_bytes, tensor.offset), "<f4" if form == "f32" else "<u2")
        shape = (tensor.shape[0] * PANEL, tensor.shape[1] * (1 if form == "f32" else 2))
        found[name] = decode(unpack({"": data.reshape(tensor.shape)}, form, shape), form)
    return found


def relist(bundle: Path, *paths: str) -> None:
    """Lists these files of a bundle as they now are, and signs: what a publisher with the key might do."""
    listed = dict(parse_manifest((bundle / "manifest.json").read_bytes()).files)
    for path in paths:
        data = (bundle / path).read_bytes()
        listed[path] = FileEntry(path, sha256(data).digest(), len(data))
    manifest = render_manifest(listed.values())
    (bundle / "manifest.json").write_bytes(manifest)
    (bundle / "manifest.sig").write_bytes(TEST_KEY.sign(manifest))


def make_peft_directory(
    directory: Path,
    pairs: Pairs,
    *,
    alpha: float | None = None,
    stored: Callable[[F32], npt.NDArray[np.generic]] = lambda values: values,
    more: Mapping[str, npt.NDArray[np.generic]] | None = None,
    prefix: str = "model.",
    **config: Any,
) -> Path:
    """`alpha` is the rank unless given, so that nothing is scaled; `config` goes over the configuration's keys.

    What `stored` makes uint16 of is written as bf16.
    """
    directory.mkdir()
    rank = len(next(iter(pairs.values())).a)
    tensors = {}
    for stem, pair in pairs.items():
        for side, values in zip("AB", pair, strict=True):
            tensors[f"{their_module(stem, prefix)}.lora_{side}.weight"] = stored(values)
    _save(directory / "adapter_model.safetensors", {**tensors, **(more or {})})
    written = {**PEFT_CONFIG, "r": rank, "lora_alpha": rank if alpha is None else alpha, **config}
    (directory / "adapter_config.json").write_text(json.dumps(written))
    return directory


def their_module(stem: str, prefix: str = "model.") -> str:
    layers, index, part, name = stem.split(".")
    return f"base_model.model.{prefix}{layers}.{index}.{'self_attn' if part == 'attn' else part}.{name}_proj"


# The keys that PEFT 0.17 writes for plain LoRA.
PEFT_CONFIG: Mapping[str, Any] = {
    "alpha_pattern": {}, "auto_mapping": None, "base_model_name_or_path": "someone/tiny", "bias": "none",
    "corda_config": None, "eva_config": None, "exclude_modules": None, "fan_in_fan_out": False,
    "inference_mode": True, "init_lora_weights": True, "layer_replication": None, "layers_pattern": None,
    "layers_to_transform": None, "loftq_config": {}, "lora_bias": False, "lora_dropout": 0.05,
    "megatron_config": None, "megatron_core": "megatron.core", "modules_to_save": None, "peft_type": "LORA",
    "qalora_group_size": 16, "rank_pattern": {}, "revision": None, "target_modules": ["q_proj", "v_proj"],
    "target_parameters": None, "task_type": "CAUSAL_LM", "trainable_token_indices": None, "use_dora": False,
    "use_qalora": False, "use_rslora": False,
}  # fmt: skip


def _save(path: Path, tensors: Mapping[str, npt.NDArray[np.generic]]) -> None:
    header: dict[str, object] = {}
    data = b""
    for name, values in tensors.items():
        kind = "BF16" if values.dtype == np.uint16 else f"{values.dtype.kind.upper()}{8 * values.dtype.itemsize}"
        begin, data = len(data), data + values.tobytes()
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def _planned(name: str, values: F32, form: Form) -> PlannedTensor:
    def chunks() -> Iterator[tuple[int, Stored]]:
        yield 0, encode(values, form)

    return PlannedTensor(name, values.shape, form, chunks)
