"""The machine's limits, measured by Bones' native code in the same run, and what share of them a speed amounts to."""

from __future__ import annotations

import functools

from models import Arithmetic, BenchModel, Precision
from workloads import Workload

from tie.bones._native import measure_gemm_peak, measure_read_bandwidth


@functools.cache
def read_bandwidth(weight_bytes: int, threads: int) -> float:
    """Bytes a second, over as much memory as the model's weights."""
    found = measure_read_bandwidth(weight_bytes, threads)
    print(f"limit: {found / 1e9:.1f} GB/s reading {weight_bytes / 1e6:.0f} MB with {threads} thread(s)", flush=True)
    return found


@functools.cache
def gemm_peak(arithmetic: Arithmetic, threads: int) -> float:
    """Operations a second with all operands in registers."""
    found = measure_gemm_peak(arithmetic, threads)
    print(f"limit: {found / 1e9:.0f} Gop/s in {arithmetic} with {threads} thread(s)", flush=True)
    return found


def fraction(
    model: BenchModel, precision: Precision, weight_bytes: int, threads: int, work: Workload, tokens_s: float
) -> float | None:
    """Of the arithmetic for a prompt, of the bandwidth for one sequence; several together have no single limit."""
    if work.kind == "prefill":
        operations_s = model.prefill_operations(work.tokens) / work.tokens * tokens_s
        return operations_s / gemm_peak(precision.arithmetic, threads)
    if work.sequences > 1:
        return None
    read = weight_bytes + model.kv_bytes(work.mean_context, precision.kv_dtype)
    return read * tokens_s / read_bandwidth(weight_bytes, threads)
