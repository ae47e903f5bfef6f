"""OpenVINO: the graph that its GGUF reader makes, as a stateful model asked by plain inference requests.

`weights` says what becomes of the graph's weights before it is compiled: "as-is"; "f32", widened; "by-row", requantised
to signed bytes with one scale a row, which its own tools make of a model. The head is computed for the last token only,
as its own pipelines do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino_genai
from openvino import opset13 as ops

from peers.serving import prompt, serve, stopwatch


class OpenVino:
    """One compiled model, one request whose state is the cache."""

    def __init__(self, path: str, graphs: str, threads: int, weights: str, options: dict[str, Any]) -> None:
        core = openvino.Core()
        graph = _graph(Path(path), Path(graphs))
        model = core.read_model(_by_row(graph) if weights == "by-row" else graph)
        if weights == "f32":
            _widen(model)
        _head_of_last_token(model)
        options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, **options}
        self._request = core.compile_model(model, "CPU", options).create_infer_request()
        self._sequences = self._position = 0

    def prefill(self, tokens: int) -> float:
        self._request.reset_state()
        inputs = _inputs(np.array([prompt(tokens)]), 0)
        elapsed = stopwatch()
        self._step(inputs)
        return elapsed()

    def begin(self, sequences: int, context: int, steps: int) -> None:
        """The first sequence's state, repeated."""
        self.prefill(context)
        for state in self._request.query_state() if sequences > 1 else ():
            kept = np.array(state.state.data)
            state.state = openvino.Tensor(np.ascontiguousarray(np.repeat(kept, sequences, axis=0)))
        self._sequences, self._position = sequences, context
        self.decode(1)

    def decode(self, steps: int) -> float:
        ids = np.array([prompt(1, sequence) for sequence in range(self._sequences)])
        inputs = [_inputs(ids, self._position + step) for step in range(steps)]
        self._position += steps
        elapsed = stopwatch()
        for step in inputs:
            self._step(step)
        return elapsed()

    def _step(self, inputs: dict[str, Any]) -> None:
        """One pass and the likeliest token of each sequence."""
        self._request.infer(inputs, share_inputs=True, share_outputs=True)
        self._request.get_output_tensor(0).data.argmax(axis=-1)


def _inputs(ids: np.ndarray[Any, Any], past: int) -> dict[str, Any]:
    sequences, tokens = ids.shape
    positions = np.broadcast_to(np.arange(past, past + tokens), ids.shape)
    return {
        "input_ids": ids.astype(np.int64),
        "attention_mask": np.ones((sequences, past + tokens), np.int64),
        "position_ids": np.ascontiguousarray(positions, np.int64),
        "beam_idx": np.arange(sequences, dtype=np.int32),
    }


def _graph(path: Path, graphs: Path) -> Path:
    """Its reader writes the graph beside the file it reads, so it is shown the file in a folder of the graph's own."""
    folder = graphs / path.stem
    if not (folder / "done").exists():
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / path.name
        link.unlink(missing_ok=True)
        link.symlink_to(path.resolve())
        openvino_genai.LLMPipeline(link, "CPU", enable_save_ov_model=True)
        (folder / "done").touch()
    return folder / "openvino_model.xml"


def _head_of_last_token(model: openvino.Model) -> None:
    head = model.get_results()[0].input_value(0).get_node()
    start, stop, step, axis = (ops.constant([value], np.int64) for value in (-1, np.iinfo(np.int64).max, 1, 1))
    last = ops.slice(head.input_value(0), start, stop, step, axis)
    head.input(0).replace_source_output(last.output(0))
    model.validate_nodes_and_infer_types()


def _widen(model: openvino.Model) -> None:
    """16-bit constants and their conversion become 32-bit constants."""
    for node in model.get_ops():
        if node.get_type_name() != "Convert" or node.get_element_type() != openvino.Type.f32:
            continue
        kept = node.input_value(0).get_node()
        if kept.get_type_name() == "Constant" and kept.get_element_type() == openvino.Type.f16:
            openvino.utils.replace_node(node, ops.constant(kept.data.astype(np.float32)))


def _by_row(graph: Path) -> Path:
    """Beside the graph, made of it if it is not there."""
    path = graph.with_stem("by_row")
    if not path.with_suffix(".done").exists():
        model = openvino.Core().read_model(graph)
        _requantise_by_row(model)
        openvino.save_model(model, path, compress_to_fp16=False)
        path.with_suffix(".done").touch()
    return path


def _requantise_by_row(model: openvino.Model) -> None:
    for node in model.get_ops():
        if node.get_type_name() == "MatMul" and len(node.input_value(1).get_partial_shape()) == 2:
            kept = _weights(node.input_value(1).get_node())
            scale = np.maximum(np.abs(kept).max(axis=1, keepdims=True), 1e-9) / 127
            numbers = ops.constant(np.round(kept / scale).astype(np.int8))
            widened = ops.multiply(ops.convert(numbers, "f32"), ops.constant(scale.astype(np.float32)))
            node.input(1).replace_source_output(widened.output(0))
    model.validate_nodes_and_infer_types()


def _weights(node: Any) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The matrix that a part of the graph without inputs amounts to."""
    part = openvino.Model([node.output(0)], [], "weights")
    result = openvino.Core().compile_model(part, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})([])[0]
    return np.asarray(result, np.float32)


if __name__ == "__main__":
    serve(lambda given: OpenVino(**given), openvino_genai.__version__)
