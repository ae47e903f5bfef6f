"""The library that executes the model; everything is native.

`Model` maps verified weights, `Engine` gives it a KV cache and threads, `Engine.forward` executes one `Batch`. Which
sequences run, which blocks they own and when a block is zeroed is left to the runtime.
"""

from tie.bones._native import (
    Batch,
    BatchError,
    BonesError,
    DescriptionError,
    Engine,
    Model,
    Outcome,
    Sampling,
    WeightsError,
)

__all__ = [
    "Batch",
    "BatchError",
    "BonesError",
    "DescriptionError",
    "Engine",
    "Model",
    "Outcome",
    "Sampling",
    "WeightsError",
]
