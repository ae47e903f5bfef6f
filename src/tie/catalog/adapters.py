"""LoRA adapters of a bundle, held against the model that they bend (`adapters/NAME/weights.safetensors`).

For any of the layers' matrices W `[rows, K]`, named STEM.weight, an adapter brings two more, which are stored like the
model's own in f32 or bf16:

    STEM.lora_a   A [r, K]      STEM.lora_b   B [rows, r]      y = x W^T + (x A^T) B^T

What a training run scales by is folded into B, and r is filled up with zeros to whole blocks, both at import; so r is
read off A's panels and nothing else describes an adapter. Embedding and output head cannot be adapted.
"""

from collections.abc import Mapping
from typing import Final

from tie.catalog.description import ModelDescription
from tie.catalog.errors import BundleRejected
from tie.catalog.layout import BLOCK, PANEL, Expected, expected_tensors, take_tensor
from tie.catalog.safetensors_header import Tensor

A: Final = ".lora_a"
B: Final = ".lora_b"
MAX_RANK: Final = 512


def adaptable(model: ModelDescription) -> dict[str, tuple[int, int]]:
    """Stem of each matrix that an adapter may bend, with its rows and K, in the order of a forward pass."""
    return {
        expected.name.removesuffix(".weight"): (expected.shape[0], expected.shape[1])
        for expected in expected_tensors(model)
        if expected.is_matrix and expected.name.startswith("layers.")
    }


def check_adapter(model: ModelDescription, tensors: Mapping[str, Tensor], where: str) -> dict[str, int]:
    """The rank of each stem; refuses half a pair, a tensor of another shape or dtype, and one that bends nothing."""
    left = dict(tensors)
    ranks: dict[str, int] = {}
    for stem, (rows, k) in adaptable(model).items():
        if not tensors.keys() & {stem + A, stem + B}:
            continue
        for name in (stem + A, stem + B):
            if name not in tensors:
                raise BundleRejected(where, f"tensor {name} is missing")
        ranks[stem] = rank = _rank(tensors[stem + A], where)
        take_tensor(Expected(stem + A, (rank, k)), left, where)
        take_tensor(Expected(stem + B, (rows, rank)), left, where)
    if left:
        raise BundleRejected(where, f"tensor {min(left)} bends no matrix of the model")
    if not ranks:
        raise BundleRejected(where, "bends no matrix of the model")
    return ranks


def _rank(a: Tensor, where: str) -> int:
    rank = a.shape[0] * PANEL if a.shape else 0
    if rank % BLOCK or not BLOCK <= rank <= MAX_RANK:
        raise BundleRejected(where, f"tensor {a.name} is of rank {rank}, not a multiple of {BLOCK} up to {MAX_RANK}")
    return rank
