"""What Triton's Python backend calls. The model repository's model.py is one import of this module.

Triton's stub starts as `python3` of the virtual environment, with the node's file named in its environment.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from pathlib import Path
from typing import Any, Final

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from tie.afm_runtime import tensors
from tie.afm_runtime.config import CONFIG_VARIABLE, AfmRuntimeConfig
from tie.afm_runtime.forwarding import Ids
from tie.afm_runtime.intake import Refused
from tie.afm_runtime.serving import Attached, Serving
from tie.afm_runtime.tensors import TooLong, WrongTensor
from tie.api.afm.v1 import afm_pb2
from tie.contracts import limits, triton_io
from tie.servicekit import config, hygiene, logs

EXIT_SERVER_GONE: Final = 71
SWITCH_INTERVAL_S: Final = 0.0005
"""The sender must not keep the engine's thread waiting for Python's default of 5 ms."""


class TritonPythonModel:
    """Triton makes one and calls it from one thread."""

    def initialize(self, args: dict[str, str]) -> None:
        threading.Thread(target=_leave_with_server, args=(os.pidfd_open(os.getppid()),), daemon=True).start()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        path = Path(os.environ[CONFIG_VARIABLE])
        node = config.load(path, "node", config.NodeConfig)
        logs.configure("afm_runtime", node.log_level)
        hygiene.harden()
        runtime = config.load(path, "afm_runtime", AfmRuntimeConfig)
        attached = self.attach(node, runtime)
        self._serving = Serving(
            attached, node.paths, admitted_uids=node.admitted_uids, control_uids=runtime.control_uids
        )
        self._serving.start()
        logs.logger().info("afm_runtime.attached", block_count=attached.block_count)

    def attach(self, node: config.NodeConfig, runtime: AfmRuntimeConfig) -> Attached:
        """The model to serve; tests put a scripted one here, which needs no engine."""
        from tie.afm_runtime.attach import attach

        return attach(node, runtime)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            self._serving.take(_Inputs(request), _Channel(request))

    def finalize(self) -> None:
        self._serving.stop()


class _Inputs:
    """A request's tensors (`serving.IncomingTensors`)."""

    def __init__(self, request: Any) -> None:
        self._request = request

    def tokens(self, most: int) -> Ids | None:
        return self._read(triton_io.TOKENS, most)

    def params(self) -> NDArray[np.uint8] | None:
        return self._read(triton_io.PARAMS, limits.MAX_PARAMS_BYTES)

    def images(self) -> NDArray[Any] | None:
        return self._read(triton_io.IMAGES, 0)

    def _read(self, name: str, most: int) -> NDArray[Any] | None:
        try:
            return tensors.incoming(self._request, name, triton_io.INPUTS[name], most)
        except WrongTensor as error:
            is_long_prompt = isinstance(error, TooLong) and name == triton_io.TOKENS
            kind = afm_pb2.FAILURE_KIND_TOO_LONG if is_long_prompt else afm_pb2.FAILURE_KIND_INVALID
            raise Refused(kind, str(error)) from None


class _Channel:
    """A request's way back (`replies.ResponseChannel`)."""

    def __init__(self, request: Any) -> None:
        self._request = request
        self._sender = request.get_response_sender()

    def send(self, tokens: list[int], event: bytes, is_final: bool) -> None:
        outputs = [
            tensors.outgoing(triton_io.TOKENS, np.array(tokens, np.int32)),
            tensors.outgoing(triton_io.EVENT, np.array(bytearray(event), np.uint8)),
        ]
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_final else 0
        self._sender.send(pb_utils.InferenceResponse(outputs), flags=flags)

    def send_final_flag(self) -> None:
        self._sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def is_cancelled(self) -> bool:
        return bool(self._request.is_cancelled())


def _leave_with_server(server: int) -> None:
    """A stub whose server was killed can hang for ever: leave at once. The host cleans up."""
    poll = select.poll()
    poll.register(server, select.POLLIN)
    poll.poll()
    os._exit(EXIT_SERVER_GONE)
