"""Which tensors a model of a given description consists of, and in which form each is stored (layout `rows-1`).

The weights of a bundle must be exactly these: the names, shapes and dtypes are checked against the description before
anything is mapped, so that Bones is never handed a matrix of another size than it was told.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from tie.catalog.description import ModelDescription
from tie.catalog.errors import BundleRejected
from tie.catalog.safetensors_header import Tensor

BLOCK: Final = 32  # elements along K that share a scale
WEIGHTS: Final = "weights"

Form = Literal["f32", "bf16", "int8", "int4", "int4_min"]

# What is stored beside each other under one name: suffix, dtype, and how many elements of K one stored element covers.
PARTS: Final[Mapping[Form, tuple[tuple[str, str, int], ...]]] = {
    "f32": (("", "F32", 1),),
    "bf16": (("", "BF16", 1),),
    "int8": ((".q", "I8", 1), (".scale", "F16", BLOCK)),
    "int4": ((".q", "U8", 2), (".scale", "F16", BLOCK)),
    "int4_min": ((".q", "U8", 2), (".scale", "F16", BLOCK), (".min", "F16", BLOCK)),
}


@dataclass(frozen=True, slots=True)
class Expected:
    """A tensor of the model: a vector (norms, biases; always f32), or a matrix `[rows, K]`."""

    name: str
    shape: tuple[int, ...]

    @property
    def is_matrix(self) -> bool:
        return len(self.shape) == 2


def expected_tensors(model: ModelDescription) -> Iterator[Expected]:
    """In the order in which a forward pass meets them."""
    hidden, inner = model.hidden_size, model.intermediate_size
    query, kv = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
    yield Expected("embed.weight", (model.vocab_size, hidden))
    for index in range(model.layer_count):
        layer = f"layers.{index}."
        yield Expected(layer + "attn_norm.weight", (hidden,))
        for name, rows in (("q", query), ("k", kv), ("v", kv)):
            yield Expected(f"{layer}attn.{name}.weight", (rows, hidden))
            if model.attention_bias:
                yield Expected(f"{layer}attn.{name}.bias", (rows,))
        yield Expected(layer + "attn.o.weight", (hidden, query))
        yield Expected(layer + "mlp_norm.weight", (hidden,))
        yield Expected(layer + "mlp.gate.weight", (inner, hidden))
        yield Expected(layer + "mlp.up.weight", (inner, hidden))
        yield Expected(layer + "mlp.down.weight", (hidden, inner))
    yield Expected("norm.weight", (hidden,))
    if not model.tied_embeddings:
        yield Expected("lm_head.weight", (model.vocab_size, hidden))


def part_shape(shape: tuple[int, ...], covers: int) -> tuple[int, ...]:
    return (*shape[:-1], shape[-1] // covers)


def check_tensors(model: ModelDescription, tensors: Mapping[str, Tensor], where: str = WEIGHTS) -> dict[str, Form]:
    """The form of each tensor of the model; refuses a tensor that is missing, of another shape or dtype, or extra."""
    left = dict(tensors)
    forms: dict[str, Form] = {}
    for expected in expected_tensors(model):
        form = _form(expected, left, where)
        for suffix, dtype, covers in PARTS[form]:
            _check_part(expected, left, suffix, dtype, covers, where)
        forms[expected.name] = form
    if left:
        raise BundleRejected(where, f"tensor {min(left)} does not belong to the model")
    return forms


def _form(expected: Expected, tensors: Mapping[str, Tensor], where: str) -> Form:
    plain, quantised = tensors.get(expected.name), tensors.get(expected.name + ".q")
    if plain is not None:
        return "f32" if plain.dtype == "F32" or not expected.is_matrix else "bf16"
    if quantised is None or not expected.is_matrix:
        raise BundleRejected(where, f"tensor {expected.name} is missing")
    if expected.shape[-1] % BLOCK:
        raise BundleRejected(where, f"tensor {expected.name} has blocks, but its rows of {expected.shape[-1]} do not")
    if quantised.dtype == "I8":
        return "int8"
    return "int4_min" if expected.name + ".min" in tensors else "int4"


def _check_part(expected: Expected, left: dict[str, Tensor], suffix: str, dtype: str, covers: int, where: str) -> None:
    name = expected.name + suffix
    tensor = left.pop(name, None)
    if tensor is None:
        raise BundleRejected(where, f"tensor {name} is missing")
    if tensor.dtype != dtype:
        raise BundleRejected(where, f"tensor {name} is {tensor.dtype}, not {dtype}")
    if tensor.shape != part_shape(expected.shape, covers):
        shape = part_shape(expected.shape, covers)
        raise BundleRejected(where, f"tensor {name} has shape {list(tensor.shape)}, not {list(shape)}")
