"""Which tensors a model of a given description consists of, and in which form each is stored (layout `panels-1`).

A matrix `[rows, K]` is cut into panels of 16 rows, and K into words of 4 bytes; one word of each of a panel's rows lie
side by side, so that 16 outputs grow in as many lanes with no sum across them (docs/adr/0009). `P` panels hold:

    f32    NAME        F32   [P, K, 16]            element [p, k, lane] = w[16p + lane, k]
    bf16   NAME        BF16  [P, ⌈K/2⌉, 16, 2]     element [p, j, lane, i] = w[16p + lane, 2j + i]; beyond K zeros
    int8   NAME.q      U8    [P, K/4, 16, 4]       byte = q + 128
           NAME.scale  F16   [P, K/32, 16]         w = scale * q
    int4   NAME.q      U8    [P, K/32, 4, 16, 4]   byte [p, b, j, lane, i]: element 32b + 4j + i low, 16 further on high
           NAME.scale  F16   [P, K/32, 16]         w = scale * (q - 8), or with the minimum
           NAME.min    F16   [P, K/32, 16]         w = scale * q + min

Rows that the last panel lacks are zero bytes. Vectors are plain f32. Within a file everything begins where it is
aligned (`weights_file`); readers rely on no more than the alignment of elements.

The weights of a bundle must be exactly these: the names, shapes and dtypes are checked against the description before
anything is mapped, so that Bones is never handed a matrix of another size than it was told.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from tie.catalog.description import ModelDescription
from tie.catalog.errors import BundleRejected
from tie.catalog.safetensors_header import Tensor

PANEL: Final = 16  # rows that lie side by side
BLOCK: Final = 32  # elements along K that share a scale
WEIGHTS: Final = "weights"

Form = Literal["f32", "bf16", "int8", "int4", "int4_min"]


@dataclass(frozen=True, slots=True)
class Part:
    """One of the tensors that a matrix is stored as: of each panel, steps along K, of each step `inner`."""

    suffix: str
    dtype: str
    covers: int  # elements of K in a step
    inner: tuple[int, ...]  # PANEL is one of its axes: that of the lanes

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of a tensor of the model that has `shape`; a vector is stored as it is."""
        if len(shape) == 1:
            return shape
        rows, columns = shape
        return (panels_of(rows), -(-columns // self.covers), *self.inner)


_SCALE: Final = Part(".scale", "F16", BLOCK, (PANEL,))
_MIN: Final = Part(".min", "F16", BLOCK, (PANEL,))
_NIBBLES: Final = Part(".q", "U8", BLOCK, (4, PANEL, 4))
PARTS: Final[Mapping[Form, tuple[Part, ...]]] = {
    "f32": (Part("", "F32", 1, (PANEL,)),),
    "bf16": (Part("", "BF16", 2, (PANEL, 2)),),
    "int8": (Part(".q", "U8", 4, (PANEL, 4)), _SCALE),
    "int4": (_NIBBLES, _SCALE),
    "int4_min": (_NIBBLES, _SCALE, _MIN),
}


def panels_of(rows: int) -> int:
    return -(-rows // PANEL)


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
    yield Expected("embed.weight", (model.vocab_size, model.hidden_size))
    for index in range(model.layer_count):
        layer = f"layers.{index}."
        yield Expected(layer + "attn_norm.weight", (model.hidden_size,))
        yield from _attention(model, layer + "attn.")
        if model.post_norms:
            yield Expected(layer + "attn_post_norm.weight", (model.hidden_size,))
        yield Expected(layer + "mlp_norm.weight", (model.hidden_size,))
        yield from _mlp(model, layer + "mlp.")
        if model.post_norms:
            yield Expected(layer + "mlp_post_norm.weight", (model.hidden_size,))
    yield Expected("norm.weight", (model.hidden_size,))
    if not model.tied_embeddings:
        yield Expected("lm_head.weight", (model.vocab_size, model.hidden_size))


def _attention(model: ModelDescription, prefix: str) -> Iterator[Expected]:
    query, kv = model.query_heads * model.head_dim, model.kv_heads * model.head_dim
    for name, rows in (("q", query), ("k", kv), ("v", kv)):
        yield from _linear(prefix + name, rows, model.hidden_size, model.qkv_bias)
    if model.qk_norm:
        yield Expected(prefix + "q_norm.weight", (model.head_dim,))
        yield Expected(prefix + "k_norm.weight", (model.head_dim,))
    yield from _linear(prefix + "o", model.hidden_size, query, model.output_bias)


def _mlp(model: ModelDescription, prefix: str) -> Iterator[Expected]:
    hidden, inner = model.hidden_size, model.intermediate_size
    for name, rows, columns in (("gate", inner, hidden), ("up", inner, hidden), ("down", hidden, inner)):
        yield from _linear(prefix + name, rows, columns, model.mlp_bias)


def _linear(name: str, rows: int, columns: int, has_bias: bool) -> Iterator[Expected]:
    yield Expected(name + ".weight", (rows, columns))
    if has_bias:
        yield Expected(name + ".bias", (rows,))


def check_tensors(model: ModelDescription, tensors: Mapping[str, Tensor], where: str = WEIGHTS) -> dict[str, Form]:
    """The form of each tensor of the model; refuses a tensor that is missing, of another shape or dtype, or extra."""
    left = dict(tensors)
    forms = {expected.name: take_tensor(expected, left, where) for expected in expected_tensors(model)}
    if left:
        raise BundleRejected(where, f"tensor {min(left)} does not belong to the model")
    return forms


def take_tensor(expected: Expected, left: dict[str, Tensor], where: str) -> Form:
    """Takes a tensor's parts out of `left`, once they are what they must be, and says in which form it is."""
    form = _form(expected, left, where)
    for part in PARTS[form]:
        name, shape = expected.name + part.suffix, part.shape(expected.shape)
        tensor = left.pop(name, None)
        if tensor is None:
            raise BundleRejected(where, f"tensor {name} is missing")
        if tensor.dtype != part.dtype:
            raise BundleRejected(where, f"tensor {name} is {tensor.dtype}, not {part.dtype}")
        if tensor.shape != shape:
            raise BundleRejected(where, f"tensor {name} has shape {list(tensor.shape)}, not {list(shape)}")
    return form


def _form(expected: Expected, tensors: Mapping[str, Tensor], where: str) -> Form:
    plain, quantised = tensors.get(expected.name), tensors.get(expected.name + ".q")
    if plain is not None:
        return "f32" if plain.dtype == "F32" or not expected.is_matrix else "bf16"
    if quantised is None or not expected.is_matrix:
        raise BundleRejected(where, f"tensor {expected.name} is missing")
    if expected.shape[-1] % BLOCK:
        raise BundleRejected(where, f"tensor {expected.name} has blocks, but its rows of {expected.shape[-1]} do not")
    if len(quantised.shape) == len(PARTS["int8"][0].shape(expected.shape)):
        return "int8"
    return "int4_min" if expected.name + ".min" in tensors else "int4"
