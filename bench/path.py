"""What the path costs: the same request through a whole node and straight through Bones, in turn, in one run.

    .venv/bin/python bench/path.py [--quick] [--out DIR] [--bundle DIR] [--threads N]

The node answers a chat prompt over the sealed channel; the direct arm runs a prompt of as many tokens through
`tie.bones.Engine` with the same block size, KV type and number of threads. Both decode the same number of tokens,
greedily. `ttft_overhead_ms` and `per_token_overhead_ms` are differences of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tie.bones import Batch, Engine, Model, Sampling
from tie.catalog.bundle import open_bundle
from tie.catalog.signature import default_trusted_keys_path, load_trusted_keys
from tie.clients import cloudboard
from tie.vre import Client, Delta, Usage
from tie.vre.request import Sampling as Asked

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
PROMPT = "Explain in a few sentences why the sky is blue during the day and red in the evening."
REST_S = 2.5
"""Before each run of either arm: a fresh pair warms up meanwhile, and takes no time from what is measured."""
STAGES = (
    ("cloudboardd", "request.ended", "wait_ms", "cloudboardd: setup to bound pair"),
    ("cloudboardd", "request.served", "open_ms", "helper: key opened"),
    ("cloudboardd", "request.served", "intake_ms", "helper: request opened, since its start"),
    ("acceptor", "request.done", "intake_ms", "app: parsed and checked"),
    ("acceptor", "request.done", "prompt_ms", "app: rendered and tokenised"),
    ("acceptor", "request.done", "dispatch_ms", "app: dispatched"),
    ("acceptor", "request.done", "first_token_ms", "app: first token back"),
    ("afm_runtime", "request.ended", "first_token_ms", "runtime: arrival to first token"),
    ("cloudboardd", "request.served", "first_token_ms", "helper: first message sealed, since its start"),
)


@dataclass
class Arm:
    """Samples of one way to run the request, in milliseconds."""

    first_token: list[float] = field(default_factory=list)
    per_token: list[float] = field(default_factory=list)

    def add(self, begin: float, arrivals: list[float], tokens: int) -> None:
        """Times by tokens, not by arrivals: several tokens may share a message when a stage is behind."""
        self.first_token.append((arrivals[0] - begin) * 1e3)
        self.per_token.append((arrivals[-1] - arrivals[0]) / (tokens - 1) * 1e3)


@contextmanager
def node(bundle: Path, threads: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tie-b-", dir="/tmp") as run_dir:
        options = ["--run-dir", run_dir, "--bundle", str(bundle), "--threads", str(threads)]
        subprocess.run([str(BIN / "tie"), "up", "--detach", *options], check=True)
        try:
            yield Path(run_dir)
        finally:
            subprocess.run([str(BIN / "tie"), "down", "--run-dir", run_dir], check=True, stdout=subprocess.DEVNULL)


def through_the_node(client: Client, tokens: int) -> tuple[float, list[float], int, int]:
    """Begin, arrival of each text delta, prompt tokens, completion tokens."""
    arrivals, prompt, completion = [], 0, 0
    sampling = Asked(max_tokens=tokens, ignore_eos=True)
    begin = time.perf_counter()
    for event in client.ask(PROMPT, sampling):
        if isinstance(event, Delta):
            arrivals.append(time.perf_counter())
        elif isinstance(event, Usage):
            prompt, completion = event.prompt, event.completion
    return begin, arrivals, prompt, completion


class Direct:
    """Bones with one sequence, block table in order."""

    def __init__(self, bundle: Path, threads: int) -> None:
        keys = load_trusted_keys(default_trusted_keys_path())
        with open_bundle(bundle, trusted_keys=keys) as opened:
            described = opened.description
            self._model = Model(described.model.to_json(), list(opened.weight_fds()))
        self._block = described.kv.block_size_tokens
        self._engine = Engine(
            self._model, block_count=64, block_size_tokens=self._block, kv_dtype=described.kv.dtype, threads=threads
        )
        self._sampling = Sampling(
            temperature=0.0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, presence_penalty=0.0,
            frequency_penalty=0.0, seed=0, choice_index=0, logit_bias=[], history=np.zeros(0, np.int32), prompt_len=0,
        )  # fmt: skip

    def run(self, prompt: int, tokens: int) -> tuple[float, list[float]]:
        begin, arrivals = time.perf_counter(), []
        ids, context = np.arange(100, 100 + prompt, dtype=np.int32), 0
        for _ in range(tokens):
            context += len(ids)
            ids = np.array([self._step(ids, context)], np.int32)
            arrivals.append(time.perf_counter())
        return begin, arrivals

    def _step(self, ids: np.ndarray[tuple[int], np.dtype[np.int32]], context: int) -> int:
        blocks = -(-context // self._block)
        outcome = self._engine.forward(
            Batch(
                token_ids=ids,
                query_lens=np.array([len(ids)], np.int32),
                context_lens=np.array([context], np.int32),
                block_tables=np.arange(blocks, dtype=np.int32),
                block_table_offsets=np.array([0, blocks], np.int32),
                sample=np.array([True]),
                sampling=[self._sampling],
            )
        )
        return int(outcome.tokens[0])


def measure(bundle: Path, threads: int, rounds: int, tokens: int) -> tuple[Arm, Arm, dict[str, float]]:
    direct, whole, straight = Direct(bundle, threads), Arm(), Arm()
    with (
        node(bundle, threads) as run_dir,
        Client(cloudboard.read_address(run_dir), allow_development_attestation=True) as client,
    ):
        for turn in range(rounds + 2):
            time.sleep(REST_S)
            begin, arrivals, prompt, completion = through_the_node(client, tokens)
            assert completion == tokens, f"asked for {tokens} tokens, got {completion}"
            time.sleep(REST_S)
            alone = direct.run(prompt, tokens)
            if turn < 2:
                continue  # the first rounds fault pages in
            whole.add(begin, arrivals, tokens)
            straight.add(*alone, tokens)
            print(f"  round {turn - 1:2d}: node {latest(whole)}   direct {latest(straight)}", flush=True)
        return whole, straight, stage_medians(run_dir, rounds)


def latest(arm: Arm) -> str:
    return f"{arm.first_token[-1]:7.2f} ms to first, {arm.per_token[-1]:6.3f} ms a token"


def stage_medians(run_dir: Path, rounds: int) -> dict[str, float]:
    """Medians of what the processes' summary lines say of the last `rounds` requests."""
    found = {}
    for log, event, name, label in STAGES:
        lines = [
            json.loads(line) for line in (run_dir / "logs" / f"{log}.jsonl").read_text().splitlines() if event in line
        ]
        values = [line[name] for line in lines if line.get("event") == event and line.get(name) is not None][-rounds:]
        if values:
            found[label] = statistics.median(values)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke figure within a minute")
    parser.add_argument("--out", type=Path, help="folder for the raw samples as JSON")
    parser.add_argument("--bundle", type=Path, default=ROOT / "build" / "bundles" / "smollm2")
    parser.add_argument("--threads", type=int, default=1, help="Bones' threads, in both arms")
    options = parser.parse_args()
    rounds, tokens = (5, 32) if options.quick else (20, 64)
    print(
        f"{options.bundle.name}, {options.threads} thread(s) of Bones in both arms, {rounds} rounds of {tokens} tokens"
    )
    whole, straight, stages = measure(options.bundle, options.threads, rounds, tokens)
    for label, value in stages.items():
        print(f"  {label:48s} {value:9.3f} ms")
    for label, arm in (("node", whole), ("direct", straight)):
        for name, values in (("first token", arm.first_token), ("per token", arm.per_token)):
            middle, spread = statistics.median(values), f"{min(values):.3f} to {max(values):.3f}"
            print(f"  {label:7s}{name:12s} median {middle:8.3f} ms, {spread}")
    figures = {
        "ttft_overhead_ms": round(statistics.median(whole.first_token) - statistics.median(straight.first_token), 3),
        "per_token_overhead_ms": round(statistics.median(whole.per_token) - statistics.median(straight.per_token), 4),
    }
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        raw = {"node": vars(whole), "direct": vars(straight), "stages_ms": stages, "threads": options.threads}
        (options.out / "path.json").write_text(json.dumps(raw, indent=1))
    print(json.dumps({"bench": "path", "figures": figures}))


if __name__ == "__main__":
    main()
