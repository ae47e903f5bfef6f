"""docs/errors.md lists every error kind, finish reason and status that a client can be told, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tie.api.inference.v1 import inference_pb2

DOCUMENT = (Path(__file__).parents[2] / "docs" / "errors.md").read_text()


def listed(prefix: str) -> set[str]:
    return set(re.findall(rf"`({prefix}_[A-Z_]+)`", DOCUMENT))


def test_every_error_kind_is_documented() -> None:
    assert listed("ERROR_KIND") == set(inference_pb2.ErrorKind.keys()) - {"ERROR_KIND_UNSPECIFIED"}


def test_every_finish_reason_is_documented() -> None:
    assert listed("FINISH_REASON") == set(inference_pb2.FinishReason.keys()) - {"FINISH_REASON_UNSPECIFIED"}
