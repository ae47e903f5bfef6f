"""What is measured: models, their precisions, and which file each engine reads for them.

Files and bundles are made once, under `build/bench/`. Peers get, for each precision, every form of the weights in which
one of them may be at its best; the rows of the report name it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import gguf_files
from gguf_files import RANDOM_1B, SMOLLM2, Shape

from tie.catalog.description import LAYOUT

ROOT = Path(__file__).parents[1]
CACHE = ROOT / "build" / "bench"
BIN = Path(sys.executable).parent

Arithmetic = Literal["f32", "bf16", "int8"]
KvDtype = Literal["f32", "bf16"]
SHIPPED = "q4_1"


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine with one form of the weights; `module` of the package `peers` runs it."""

    label: str
    module: Literal["llama", "openvino"]
    form: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Precision:
    name: str
    form: str
    """What Bones' bundle is made of."""
    arithmetic: Arithmetic
    kv_dtype: KvDtype
    peers: tuple[Peer, ...]


def _openvino(label: str, form: str, weights: str = "as-is", **options: str) -> Peer:
    return Peer(f"OpenVINO {label}", "openvino", form, {"weights": weights, "options": options})


def _llama(form: str) -> Peer:
    return Peer(f"llama.cpp {form}", "llama", form)


INT4 = Precision("int4", "q4_0", "int8", "bf16", (_llama("q4_0"), _openvino("int4", "q4_0")))
INT8 = Precision("int8", "q8_0", "int8", "bf16", (_llama("q8_0"), _openvino("int8", "q8_0")))
BY_ROW = _openvino("int8 by row", "q8_0", weights="by-row")
AS_SHIPPED = Precision("int4", SHIPPED, "int8", "bf16", (_llama("q4_0"), _llama(SHIPPED), _openvino("int4", "q4_0")))
INT8_BY_ROW = Precision("int8", "q8_0", "int8", "bf16", (*INT8.peers, BY_ROW))
BF16 = Precision("bf16", "bf16", "bf16", "bf16", (_llama("bf16"), _openvino("bf16", "f16")))
F32 = Precision(
    "f32", "f32", "f32", "f32", (_llama("f32"), _openvino("f32", "f16", weights="f32", INFERENCE_PRECISION_HINT="f32"))
)


@dataclass(frozen=True, slots=True)
class BenchModel:
    name: str
    suffix: str
    """Of the names of its workloads."""
    shape: Shape
    precisions: tuple[Precision, ...]
    is_random: bool

    def layer_parameters(self) -> int:
        return self.shape.layers * sum(rows * columns for _, (rows, columns) in self.shape.matrices())

    def prefill_operations(self, tokens: int) -> float:
        """Multiplications and additions of a prompt: layers, causal attention, and the head for the last token."""
        shape = self.shape
        attention = 4 * shape.layers * shape.heads * shape.head_dim * tokens * (tokens + 1) / 2
        return 2 * tokens * self.layer_parameters() + attention + 2 * shape.vocab * shape.hidden

    def kv_bytes(self, context: int, kv_dtype: KvDtype) -> int:
        """Read by one more token of a sequence."""
        shape = self.shape
        return 2 * shape.layers * shape.kv_heads * shape.head_dim * context * (4 if kv_dtype == "f32" else 2)

    def file(self, form: str) -> Path:
        """The model in a form, made if it is not there."""
        if form == SHIPPED and not self.is_random:
            return gguf_files.shipped()
        path = CACHE / f"{self.name}-{form}.gguf"
        if not path.exists():
            print(f"making {path.relative_to(ROOT)}", flush=True)
            CACHE.mkdir(parents=True, exist_ok=True)
            if self.is_random:
                gguf_files.random_model(self.shape, form, gguf_files.shipped(), path)
            else:
                gguf_files.requantise(gguf_files.shipped(), form, path)
        return path

    def bundle(self, form: str) -> Path:
        """The same file, imported."""
        path = CACHE / "bundles" / f"{self.name}-{form}-{LAYOUT}"
        if not (path / "manifest.json").exists():
            print(f"importing {path.relative_to(ROOT)}", flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            command = [str(BIN / "tie"), "import", str(self.file(form)), str(path), "--name", path.name]
            subprocess.run([*command, "--force"], check=True, stdout=subprocess.DEVNULL)
        return path


MODELS = (
    BenchModel("smollm2", "", SMOLLM2, (AS_SHIPPED, INT8_BY_ROW, BF16, F32), is_random=False),
    BenchModel("1b", "_1b", RANDOM_1B, (INT4, INT8), is_random=True),
)
