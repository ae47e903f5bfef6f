"""The runtime's metrics as a table for people."""

from __future__ import annotations

from rich.table import Table

from tie.api.afm_control.v1 import afm_control_pb2

_TIMES = "_s"


def numbers(metrics: afm_control_pb2.Metrics) -> dict[str, float | int]:
    """Every number by its name, zeros included, in the order of the contract."""
    return {field.name: getattr(metrics, field.name) for field in metrics.DESCRIPTOR.fields}


def render(metrics: afm_control_pb2.Metrics) -> Table:
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for name, value in numbers(metrics).items():
        table.add_row(name, f"{value:.6f}" if name.endswith(_TIMES) else f"{value}")
    return table
