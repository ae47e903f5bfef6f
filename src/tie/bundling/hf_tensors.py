"""The tensors of a Hugging Face file as tensors of ours: under our names, a fused one as the several that it is."""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from tie.bundling.errors import SourceRejected
from tie.bundling.hf_families import Family
from tie.bundling.source import SourceForm, SourceTensor
from tie.catalog.description import ModelDescription
from tie.catalog.layout import expected_tensors
from tie.catalog.safetensors_header import Tensor

_NAMES: Final[Mapping[str, str]] = {
    "model.embed_tokens.weight": "embed.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
}
_LAYER: Final = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,3})\.(.+)")
_DERIVED: Final = "self_attn.rotary_emb.inv_freq"  # old files keep what follows from the configuration
_FORMS: Final[Mapping[str, SourceForm]] = {"F32": "f32", "F16": "f16", "BF16": "bf16"}


class TensorReader:
    """Knows the family's names and, for fused tensors, how many rows of the model each part has."""

    def __init__(self, family: Family, model: ModelDescription) -> None:
        self._family = family
        self._rows = {expected.name: expected.shape[0] for expected in expected_tensors(model)}

    def read(self, tensor: Tensor, file: str, fd: int) -> Iterator[SourceTensor]:
        """Ours that `tensor` holds: mostly one, none where nothing of it is needed. Raises SourceRejected."""
        names = self._our_names(file, tensor.name)
        if not names:
            return
        form = _FORMS.get(tensor.dtype)
        if form is None:
            raise SourceRejected(file, f"tensor {tensor.name} is {tensor.dtype}; only F32, F16 and BF16 are imported")
        if len(names) == 1:
            adds = 1.0 if self._family.norms_add_one and names[0].endswith("norm.weight") else 0.0
            yield SourceTensor(names[0], tensor.shape, form, file, fd, tensor.offset, adds=adds)
        else:
            yield from self._split(tensor, names, form, file, fd)

    def _split(
        self, tensor: Tensor, names: tuple[str, ...], form: SourceForm, file: str, fd: int
    ) -> Iterator[SourceTensor]:
        rows = [self._rows.get(name, 0) for name in names]
        if len(tensor.shape) != 2 or tensor.shape[0] != sum(rows):
            shape = f"shape {list(tensor.shape)}, the model needs {sum(rows)} rows"
            raise SourceRejected(file, f"tensor {tensor.name} has {shape}")
        offset = tensor.offset
        for name, count in zip(names, rows, strict=True):
            part = SourceTensor(name, (count, tensor.shape[1]), form, file, fd, offset)
            yield part
            offset += count * part.row_bytes

    def _our_names(self, file: str, name: str) -> tuple[str, ...]:
        if name.startswith(self._family.left_out):
            return ()
        alone = name
        for theirs, plain in self._family.prefixes.items():
            if name.startswith(theirs):
                alone = plain + name.removeprefix(theirs)
                break
        layer = _LAYER.fullmatch(alone)
        ours: tuple[str, ...]
        if layer is None:
            ours = (_NAMES[alone],) if alone in _NAMES else ()
        elif layer[2] == _DERIVED:
            return ()
        else:
            inner = self._family.layer_names.get(layer[2])
            parts = (inner,) if inner is not None else self._family.fused.get(layer[2], ())
            ours = tuple(f"layers.{layer[1]}.{part}" for part in parts)
        if not ours:
            raise SourceRejected(file, f"tensor {name} is not one that the model family has")
        return ours
