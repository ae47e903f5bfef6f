"""What serving costs: streams through Triton against Bones driven directly with the same batches, in one run.

    .venv/bin/python bench/serving.py [--quick] [--out DIR] [--bundle DIR] [--threads N]

A node serves; clients speak to its runtime as its request processes do, from a process of their own. Figures:

    throughput_fraction_16    tokens a second of 16 streams, by those of Bones alone on the same batches
    ttft_under_prefill_ratio  time to first token of a short request that comes while a prompt of 2,000 tokens is being
                              prefilled, by that on an idle node
    schema_cost               share of throughput that a JSON Schema on each of 16 streams takes
    engine_share              share of the engine thread's steps that it spends outside Bones, at 16 streams

With --out, the raw samples and a curve of latency over throughput are left there (the curve needs `make bench-setup`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from direct_batches import Direct
from models import MODELS, ROOT
from path import node
from streams import Answered, Ask, Streams, streams

from tie.clients.runtime_control import RuntimeControl
from tie.constraints import compiling
from tie.contracts.paths import RunPaths

STREAMS, PROMPT, ANSWER = 16, 64, 128
SHORT_PROMPT, LONG_PROMPT, LONG_HEAD_START_S = 16, 2000, 0.15
STEP_TOKENS = 64
"""Of Bones alone; the node's steps come to about as many by the time they take."""
CURVE = (1, 2, 4, 8, 16, 32)
IN_STEPS = ("plan_s", "model_s", "mask_wait_s", "deliver_s")
SCHEMA = {
    "type": "array",
    "minItems": 60,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "kind": {"enum": ["city", "river", "mountain"]},
            "size": {"type": "number", "minimum": 0},
            "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "kind", "size", "tags"],
        "additionalProperties": False,
    },
}
"""Each answer is cut by its length long before it is complete."""


@dataclass
class Samples:
    direct: list[float] = field(default_factory=list)
    """Tokens a second, as the next two."""
    served: list[float] = field(default_factory=list)
    constrained: list[float] = field(default_factory=list)
    idle_s: list[float] = field(default_factory=list)
    """To first token, as the next."""
    busy_s: list[float] = field(default_factory=list)
    split: dict[str, float] = field(default_factory=dict)
    """The runtime's own metrics over the served rounds."""
    constrained_split: dict[str, float] = field(default_factory=dict)


def prompt(tokens: int, stream: int = 0) -> list[int]:
    return [100 + (7 * position + 31 * stream) % 20_000 for position in range(tokens)]


def load(count: int, answer: int = ANSWER, grammar: str = "") -> list[Ask]:
    return [Ask(prompt(PROMPT, stream), answer, grammar) for stream in range(count)]


def rate(answered: list[Answered]) -> float:
    begin, end = min(one.begun for one in answered), max(one.arrivals[-1][0] for one in answered)
    return sum(one.tokens for one in answered) / (end - begin)


def metrics(run_dir: Path) -> dict[str, float]:
    with RuntimeControl.connect(RunPaths(run_dir).runtime_control_socket, 5) as control:
        found = control.status().metrics
    return {field.name: getattr(found, field.name) for field in found.DESCRIPTOR.fields}


def first_tokens(clients: Streams) -> tuple[float, float]:
    """Of a short request, on an idle node and during a long prefill."""
    short = prompt(SHORT_PROMPT, 5)
    (idle,) = clients.run([Ask(short, 2)])
    _, busy = clients.run([Ask(prompt(LONG_PROMPT), 2), Ask(short, 2, after_s=LONG_HEAD_START_S)])
    return idle.first_token_s, busy.first_token_s


def measure(run_dir: Path, clients: Streams, direct: Direct, rounds: int) -> Samples:
    grammar, found = compiling.from_json_schema(json.dumps(SCHEMA)), Samples()
    for turn in range(rounds + 1):
        alone = direct.run(STREAMS, PROMPT, ANSWER)
        before = metrics(run_dir)
        served = rate(clients.run(load(STREAMS)))
        after = metrics(run_dir)
        constrained = rate(clients.run(load(STREAMS, grammar=grammar)))
        last = metrics(run_dir)
        idle, busy = first_tokens(clients)
        if turn == 0:
            continue  # faults pages in
        found.direct.append(STREAMS * ANSWER / alone)
        found.served.append(served)
        found.constrained.append(constrained)
        found.idle_s.append(idle)
        found.busy_s.append(busy)
        for split, begin, end in ((found.split, before, after), (found.constrained_split, after, last)):
            for name, value in end.items():
                split[name] = split.get(name, 0.0) + value - begin[name]
        print(
            f"  round {turn:2d}: direct {found.direct[-1]:7.1f}, served {served:7.1f}, with a schema {constrained:7.1f}"
            f" tokens/s; first token {idle * 1e3:6.1f} ms, under prefill {busy * 1e3:6.1f} ms",
            flush=True,
        )
    return found


def figures(found: Samples) -> dict[str, float]:
    served = statistics.median(found.served)
    in_steps = [found.split[name] for name in IN_STEPS]
    return {
        "throughput_fraction_16": round(served / statistics.median(found.direct), 3),
        "ttft_under_prefill_ratio": round(statistics.median(found.busy_s) / statistics.median(found.idle_s), 2),
        "schema_cost": round(1 - statistics.median(found.constrained) / served, 3),
        "engine_share": round(1 - found.split["model_s"] / sum(in_steps), 4),
    }


def show(found: Samples) -> None:
    for name in (*IN_STEPS, "mask_s"):
        served, constrained = (split[name] / split["steps"] * 1e3 for split in (found.split, found.constrained_split))
        print(f"  {name[:-2]:10s} {served:8.3f} ms a step, with schemas {constrained:8.3f}")


def curve(clients: Streams) -> list[dict[str, float]]:
    """Throughput, and medians and 99th percentiles of latency, for each number of streams."""
    points = []
    for count in CURVE:
        answered = clients.run(load(count))
        firsts = sorted(one.first_token_s for one in answered)
        per_token = [(one.arrivals[-1][0] - one.arrivals[0][0]) / (ANSWER - 1) for one in answered]
        point = {
            "streams": count,
            "tokens_per_s": rate(answered),
            "token_ms": statistics.median(per_token) * 1e3,
            "first_token_ms": statistics.median(firsts) * 1e3,
            "slowest_first_token_ms": firsts[-1] * 1e3,
        }
        points.append(point)
        print("  " + ", ".join(f"{name} {value:.1f}" for name, value in point.items()), flush=True)
    return points


def write(out: Path, found: Samples, points: list[dict[str, float]], title: str) -> None:
    out.mkdir(parents=True, exist_ok=True)
    raw = out / "serving.json"
    raw.write_text(json.dumps({"title": title, "samples": vars(found), "curve": points}, indent=1))
    python = ROOT / "build" / "bench-venv" / "bin" / "python"
    if python.exists():
        script = Path(__file__).with_name("serving_curve.py")
        subprocess.run([python, script, raw, out / "serving.png"], check=True)
    else:
        print("  no curve drawn: `make bench-setup` makes the environment that draws it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke figure within a minute")
    parser.add_argument("--out", type=Path, help="folder for raw samples and the curve")
    parser.add_argument("--bundle", type=Path, help="default: SmolLM2 in int8")
    parser.add_argument("--threads", type=int, default=2, help="Bones' threads, in both arms")
    options = parser.parse_args()
    rounds, bundle = 2 if options.quick else 7, options.bundle or MODELS[0].bundle("q8_0")
    title = f"{bundle.name}, {options.threads} thread(s) of Bones"
    print(f"{title}, {rounds} rounds of {STREAMS} streams: prompts of {PROMPT}, answers of {ANSWER} tokens")
    direct = Direct(bundle, options.threads, STREAMS * (PROMPT + ANSWER) // 16 + STREAMS, STEP_TOKENS)
    with node(bundle, options.threads) as run_dir, streams(run_dir, max(CURVE)) as clients:
        found = measure(run_dir, clients, direct, rounds)
        points = [] if options.quick else curve(clients)
    show(found)
    if options.out is not None:
        write(options.out, found, points, title)
    print(json.dumps({"bench": "serving", "figures": figures(found)}))


if __name__ == "__main__":
    main()
