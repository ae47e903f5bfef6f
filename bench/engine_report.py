"""Rows of the engine benchmark as they come, the table of them, and the figures."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

BONES = "Bones"


@dataclass(frozen=True, slots=True)
class Row:
    """A workload of a model in a precision with a number of threads."""

    workload: str
    model: str
    suffix: str
    precision: str
    threads: int
    samples: Mapping[str, list[float]]
    """Tokens per second by engine, Bones first."""
    fraction: float | None
    """Of the machine's limit, for Bones."""

    @property
    def key(self) -> str:
        return f"{self.workload}{self.suffix}.{self.precision}.{self.threads}"

    def medians(self) -> dict[str, float]:
        return {engine: statistics.median(values) for engine, values in self.samples.items() if values}

    def best_peer(self) -> str | None:
        peers = {engine: value for engine, value in self.medians().items() if engine != BONES}
        return max(peers, key=peers.__getitem__, default=None)

    def ratio(self) -> float | None:
        best = self.best_peer()
        return None if best is None else self.medians()[BONES] / self.medians()[best]

    def raw(self) -> dict[str, Any]:
        return asdict(self)


def line(row: Row) -> str:
    """With the spread of each engine's samples."""
    parts = [f"{row.key:26s}"]
    for engine, median in row.medians().items():
        values = row.samples[engine]
        parts.append(f"{engine} {median:.1f} ({min(values):.1f} to {max(values):.1f})")
    if (ratio := row.ratio()) is not None:
        parts.append(f"ratio {ratio:.2f}")
    if row.fraction is not None:
        parts.append(f"{row.fraction:.0%} of the limit")
    return "  ".join(parts)


def table(rows: Iterable[Row]) -> str:
    """Medians, in Markdown."""
    lines = [
        "| row | Bones, tokens/s | best peer, tokens/s | ratio | of the limit |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        medians, best = row.medians(), row.best_peer()
        peer = "—" if best is None else f"{best} {medians[best]:.1f}"
        ratio = "—" if (found := row.ratio()) is None else f"{found:.2f}"
        share = "—" if row.fraction is None else f"{row.fraction:.0%}"
        lines.append(f"| {row.key} | {medians[BONES]:.1f} | {peer} | {ratio} | {share} |")
    return "\n".join(lines)


def figures(rows: Iterable[Row]) -> dict[str, float]:
    """`ratio.*` of every row; `bandwidth_fraction.decode.*` at context 128; `gemm_fraction.prefill2048.*`."""
    found: dict[str, float] = {}
    for row in rows:
        if (ratio := row.ratio()) is not None:
            found[f"ratio.{row.key}"] = round(ratio, 3)
        place = f"{row.model}.{row.precision}.{row.threads}"
        if row.fraction is not None and row.workload == "decode_128":
            found[f"bandwidth_fraction.decode.{place}"] = round(row.fraction, 3)
        if row.fraction is not None and row.workload == "prefill_2048":
            found[f"gemm_fraction.prefill2048.{place}"] = round(row.fraction, 3)
    return found
