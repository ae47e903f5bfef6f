"""NVIDIA's own description of Triton's protocol, in a pool of its own: in the default one it collides with ours."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pool import DescriptorPool

_READ = """
from tritonclient.grpc import model_config_pb2, service_pb2
for module in (model_config_pb2, service_pb2):
    print(module.DESCRIPTOR.serialized_pb.hex())
"""


@cache
def service_file() -> FileDescriptor:
    """What the installed tritonclient speaks, read by another process."""
    done = subprocess.run([sys.executable, "-c", _READ], capture_output=True, text=True, check=True, timeout=30)
    pool = DescriptorPool()
    for line in done.stdout.split():
        pool.AddSerializedFile(bytes.fromhex(line))
    file: FileDescriptor = pool.FindFileContainingSymbol("inference.GRPCInferenceService")
    return file
