"""Real SentencePiece models: those that the package mistral-common carries."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

VOCAB_SIZE: Final = 33_000
"""At least as many as any of them has."""
V1: Final = "tokenizer.model.v1"
V3: Final = "mistral_instruct_tokenizer_240323.model.v3"


def mistral_file(name: str) -> bytes:
    package = importlib.util.find_spec("mistral_common")
    assert package is not None, "mistral-common is one of the test dependencies"
    assert package.origin is not None, "it has an __init__.py"
    return (Path(package.origin).parent / "data" / name).read_bytes()
