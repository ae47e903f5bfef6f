"""Tensors of the Triton model `afm`. A contract test holds config.pbtxt against this table."""

from __future__ import annotations

from typing import Final

MODEL_NAME: Final = "afm"

TOKENS: Final = "TOKENS"
"""In: the prompt's token ids. Out: sampled ids, the runs of EVENT one after another. INT32[-1]."""
PARAMS: Final = "PARAMS"
"""In: a serialized afm.v1.GenerateParams. UINT8[-1]."""
IMAGES: Final = "IMAGES"
"""In: the images' bytes one after another; empty while no model takes images. UINT8[-1]."""
EVENT: Final = "EVENT"
"""Out: a serialized afm.v1.GenerateEvent. UINT8[-1]."""

INPUTS: Final = {TOKENS: "INT32", PARAMS: "UINT8", IMAGES: "UINT8"}
OUTPUTS: Final = {TOKENS: "INT32", EVENT: "UINT8"}

SHM_PREFIX: Final = "triton_python_backend_shm_region_tie_"
"""Later Triton releases let no client register a region that begins like this."""
RESTRICTED_PROTOCOLS: Final = (
    "metadata",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
)
