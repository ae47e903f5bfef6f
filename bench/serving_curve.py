"""Draws serving.json of `serving.py` as a curve: python serving_curve.py serving.json serving.png"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def main(raw: Path, out: Path) -> None:
    found = json.loads(raw.read_text())
    points = found["curve"]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.5), constrained_layout=True)
    rates = [point["tokens_per_s"] for point in points]
    left.plot(rates, [point["token_ms"] for point in points], "o-")
    right.plot(rates, [point["first_token_ms"] for point in points], "o-", label="median")
    right.plot(rates, [point["slowest_first_token_ms"] for point in points], "s--", label="slowest")
    right.legend()
    for axes, what, key in ((left, "ms a token", "token_ms"), (right, "ms to first token", "first_token_ms")):
        axes.set(xlabel="tokens a second, all streams", ylabel=what, ylim=(0, None), xlim=(0, None))
        axes.grid(alpha=0.3)
        for point in points:
            axes.annotate(
                point["streams"], (point["tokens_per_s"], point[key]), xytext=(4, 6), textcoords="offset points"
            )
    figure.suptitle(f"{found['title']}: latency over throughput, by number of streams that begin at once")
    figure.savefig(out, dpi=120)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
