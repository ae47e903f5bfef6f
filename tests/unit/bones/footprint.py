"""Attaches a large model in a process of its own and prints what memory it takes, as JSON. Run by test_memory.

Arguments: the stored form, and the ranks as JSON. The image is written piece by piece into a file in memory, so that
this process never holds the weights otherwise.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from unit.bones.images import build
from unit.bones.reference import describe, shapes
from unit.bones.sequences import Chunk, driver, tokens_of

from tie.bones import Model

NAME = "footprint-weights"
LARGE: dict[str, Any] = {
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "query_heads": 16,
    "kv_heads": 4,
    "head_dim": 64,
    "vocab_size": 32768,
    "context_length": 4096,
}
# About 200 MB.
LAYERS = {"bf16": 6, "int8": 14, "int4": 28}
ENGINE: dict[str, Any] = {"block_count": 64, "block_size_tokens": 16, "kv_dtype": "bf16", "threads": 2}
TOKENS = 96
_ENTRY = re.compile(rb"^[0-9a-f]+-[0-9a-f]+ (\S+) \S+ \S+ \S+\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Mapping:
    """One entry of smaps; sizes in bytes."""

    name: str
    access: str
    sizes: dict[str, int]


def mappings() -> Iterator[Mapping]:
    name, access = "", ""
    sizes: dict[str, int] = {}
    for line in Path("/proc/self/smaps").read_bytes().splitlines():
        if entry := _ENTRY.match(line):
            if access:
                yield Mapping(name, access, sizes)
            access, name, sizes = entry[1].decode(), entry[2].decode(), {}
        elif line.endswith(b" kB"):
            field, size, _ = line.split()
            sizes[field.decode().rstrip(":")] = int(size) << 10
    yield Mapping(name, access, sizes)


def read_bytes() -> int:
    """What this process has read from files so far."""
    return int(re.findall(r"rchar: (\d+)", Path("/proc/self/io").read_text())[0])


def memory() -> dict[str, int]:
    found = dict.fromkeys(("private", "weights_private", "weights_resident", "weights_mapped"), 0)
    for mapping in mappings():
        if NAME in mapping.name:
            assert "w" not in mapping.access
            found["weights_private"] += mapping.sizes["Anonymous"]
            found["weights_resident"] += mapping.sizes["Rss"]
            found["weights_mapped"] += mapping.sizes["Size"]
        else:
            found["private"] += mapping.sizes["Private_Dirty"] + mapping.sizes["Swap"]
    return found


def tensors(description: dict[str, Any], form: str) -> Iterator[tuple[str, str, list[int]]]:
    """Name, type and shape of each tensor."""
    for name, shape in shapes(description).items():
        panels, cols = -(-shape[0] // 16), shape[-1]
        if len(shape) == 1:
            yield name, "F32", [*shape]
        elif form == "bf16":
            yield name, "BF16", [panels, cols // 2, 16, 2]
        else:
            yield f"{name}.q", "U8", [panels, cols // 4, 16, 4] if form == "int8" else [panels, cols // 32, 4, 16, 4]
            yield f"{name}.scale", "F16", [panels, cols // 32, 16]


def write(fd: int, description: dict[str, Any], form: str) -> int:
    """Weights that give finite logits; how many bytes they are."""
    noise = np.random.default_rng(0).integers(108, 148, 1 << 20, np.uint8)
    numbers = {"U8": noise, "F16": np.full(4096, 1e-3, "<f2"), "F32": np.ones(4096, "<f4")}
    numbers["BF16"] = (noise[::8] / 12800 - 1e-2).astype("<f4").view("<u2")[1::2]
    raw = {dtype: values.tobytes() for dtype, values in numbers.items()}
    entries: dict[str, Any] = {}
    pieces, end = [], 0
    for name, dtype, shape in tensors(description, form):
        size = math.prod(shape) * numbers[dtype].itemsize
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        pieces.append((raw[dtype], size))
        end += size
    header = json.dumps(entries).encode()
    header += b" " * (-(8 + len(header)) % 64)
    os.write(fd, len(header).to_bytes(8, "little") + header)
    for piece, size in pieces:
        for begin in range(0, size, len(piece)):
            os.write(fd, piece[: size - begin])
    return end


def activations(description: dict[str, Any], tokens: int, rows: int) -> int:
    """Bytes of everything that a step may hold: every tensor of it in f32 and once more as operand, and logits."""
    query, kv = (int(description[heads]) * int(description["head_dim"]) for heads in ("query_heads", "kv_heads"))
    hidden, inner = int(description["hidden_size"]), int(description["intermediate_size"])
    widths = 4 * hidden + 2 * query + 2 * kv + 3 * inner
    operand = math.ceil(1.5 * max(hidden, query, inner))
    logits = 3 * rows * int(description["vocab_size"])
    return 4 * (tokens * (widths + operand) + logits)


def main(form: str, ranks: str) -> None:
    description = describe(**LARGE, layer_count=LAYERS[form])
    fd = os.memfd_create(NAME)
    weights = write(fd, description, form)
    driver(build()[0], **ENGINE).follow([1])  # what a first use takes, whatever the size, is not counted
    before, read = memory(), read_bytes()
    run = driver(Model(json.dumps(description), [fd]), **ENGINE, **json.loads(ranks))
    read, attached = read_bytes() - read, memory()
    found = run.step([Chunk(0, tokens_of(TOKENS, vocab=description["vocab_size"]))], want_logits=True).logits
    assert found is not None
    assert np.isfinite(found).all()
    for _ in range(3):
        run.step([Chunk(0, [1])])
    figures = {
        "weights": weights,
        "kv": run.engine.block_count * run.engine.kv_bytes_per_block,
        "activations": activations(description, TOKENS, 1),
        "read": read,
        "before": before,
        "attached": attached,
        "stepped": memory(),
    }
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
