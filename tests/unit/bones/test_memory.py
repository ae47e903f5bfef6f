"""Weights are used where they are mapped: attaching copies nothing, and a step takes no more than it must."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[2]
MB = 1 << 20


def footprint(form: str, **ranks: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "unit.bones.footprint", form, json.dumps(ranks)]
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=25)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("form", ["bf16", "int8", "int4"])
def test_an_engine_takes_no_private_copy_of_its_weights(form: str) -> None:
    found = footprint(form)
    assert found["weights"] > 180 * MB
    check(found, ranks=1)


def test_ranks_share_one_mapping() -> None:
    check(footprint("int8", tensor_parallel=2, pipeline_parallel=2), ranks=4)


def check(found: dict[str, Any], ranks: int) -> None:
    before, attached, stepped = (found[when] for when in ("before", "attached", "stepped"))
    allowed = found["kv"] + found["weights"] // 20
    # Attached: nothing was read through a descriptor, and of the mapping little more than the header was touched.
    assert found["read"] < MB
    assert attached["weights_mapped"] >= found["weights"]
    assert attached["weights_resident"] < MB
    assert attached["private"] - before["private"] < allowed
    # Stepped: all of them were used where they are.
    assert stepped["weights_mapped"] == attached["weights_mapped"]
    assert stepped["weights_resident"] > 0.8 * found["weights"]
    assert stepped["weights_private"] == 0
    assert stepped["private"] - before["private"] < allowed + ranks * found["activations"]
