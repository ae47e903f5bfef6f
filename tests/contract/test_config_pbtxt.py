"""The model repository against the contract: config.pbtxt says what `contracts.triton_io` says."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from tie.contracts import triton_io

MODEL = Path(__file__).parents[2] / "containers" / "afm-runtime" / "model_repository" / triton_io.MODEL_NAME
READ = "from tritonclient.grpc import model_config_pb2 as m; print(m.DESCRIPTOR.serialized_pb.hex())"


@cache
def config() -> Any:
    """Parsed by NVIDIA's own message: a misspelt key is an error here as it is there."""
    done = subprocess.run([sys.executable, "-c", READ], capture_output=True, text=True, check=True, timeout=30)
    pool = DescriptorPool()
    pool.AddSerializedFile(bytes.fromhex(done.stdout.strip()))
    kind = GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))
    return text_format.Parse((MODEL / "config.pbtxt").read_text(), kind(), descriptor_pool=pool)


def tensors(listed: Any) -> dict[str, str]:
    kinds = config().DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number
    return {tensor.name: kinds[tensor.data_type].name.removeprefix("TYPE_") for tensor in listed}


def test_names_and_types_are_those_of_the_contract() -> None:
    assert config().name == triton_io.MODEL_NAME
    assert tensors(config().input) == triton_io.INPUTS
    assert tensors(config().output) == triton_io.OUTPUTS


def test_every_tensor_has_one_dimension_of_any_length() -> None:
    assert all(list(tensor.dims) == [-1] for tensor in [*config().input, *config().output])
    assert config().max_batch_size == 0


def test_only_images_may_be_left_out() -> None:
    assert [tensor.name for tensor in config().input if tensor.optional] == [triton_io.IMAGES]


def test_one_decoupled_instance_in_the_python_backend_on_the_cpu() -> None:
    assert config().backend == "python"
    assert config().model_transaction_policy.decoupled
    (group,) = config().instance_group
    assert (group.count, group.DESCRIPTOR.enum_types_by_name["Kind"].values_by_number[group.kind].name) == (
        1,
        "KIND_CPU",
    )


def test_the_model_file_only_imports() -> None:
    body = ast.parse((MODEL / "1" / "model.py").read_text()).body
    assert isinstance(body[0], ast.Expr)
    (imported,) = [node for node in body if isinstance(node, ast.ImportFrom)]
    assert imported.module == "tie.afm_runtime.model"
    assert all(isinstance(node, ast.Expr | ast.ImportFrom | ast.Assign) for node in body)
