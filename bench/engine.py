"""How fast Bones is: beside other engines with the same weights and threads, and beside the machine's limits.

    .venv/bin/python bench/engine.py [--quick] [--only PATTERN] [--threads 1,2] [--no-peers] [--out DIR]

Engines take turns, sample by sample, in one run, so that whatever slows the machine slows them all. The other engines
live in an environment of their own, which `make bench-setup` makes; one that is missing or fails is a missing figure.
The ratio is Bones' median over the best peer's; limits are measured in this run by Bones' own code.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import gguf_files
from bones_session import Bones
from engine_report import BONES, Row, figures, line, table
from limits import fraction, gemm_peak, read_bandwidth
from models import CACHE, MODELS, ROOT, BenchModel, Peer, Precision
from peers.remote import PeerFailed, Remote, installed
from peers.serving import Session
from workloads import QUICK, WORKLOADS, Workload

REST_S = 0.05
"""Between engines: threads of the one before, which wait for work by spinning, have gone to sleep."""


class Group:
    """All engines loaded with one model in one precision with a number of threads."""

    def __init__(
        self, model: BenchModel, precision: Precision, threads: int, python: Path, modules: Sequence[str]
    ) -> None:
        self._model, self._precision, self._threads = model, precision, threads
        self._weight_bytes = gguf_files.weight_bytes(model.file(precision.form))
        self._stack = ExitStack()
        self._sessions: dict[str, Session] = {}
        bones = Bones(model.bundle(precision.form), threads, precision.kv_dtype)
        self._sessions[BONES] = bones
        said = [f"Bones {precision.form} ({bones.isa})"]
        for peer in precision.peers:
            if peer.module in modules and (remote := self._start(peer, python)) is not None:
                said.append(f"{peer.label} ({remote.version})")
        print(f"\n{model.name}, {precision.name}, {threads} thread(s): {', '.join(said)}", flush=True)
        gemm_peak(precision.arithmetic, threads)
        read_bandwidth(self._weight_bytes, threads)

    def _start(self, peer: Peer, python: Path) -> Remote | None:
        parameters = {"path": str(self._model.file(peer.form)), "threads": self._threads, **peer.parameters}
        if peer.module == "openvino":
            parameters["graphs"] = str(CACHE / "openvino")
        log = CACHE / "logs" / f"{peer.label}.log".replace(" ", "-")
        try:
            remote = self._stack.enter_context(Remote(python, peer.module, log, parameters))
        except PeerFailed as failure:
            print(f"{peer.label} left out: {failure}", flush=True)
            return None
        self._sessions[peer.label] = remote
        return remote

    def measure(self, work: Workload) -> Row:
        """In turn: warm-up first, then one sample of each engine a round."""
        samples: dict[str, list[float]] = {engine: [] for engine in self._sessions}
        for turn in range(-1, work.rounds):
            for engine, session in list(self._sessions.items()):
                time.sleep(REST_S)
                try:
                    if turn < 0:
                        work.begin(session)
                    else:
                        samples[engine].append(work.sample(session))
                except PeerFailed as failure:
                    print(f"{engine} left out from {work.name} on: {failure}", flush=True)
                    del self._sessions[engine], samples[engine]
        return self._row(work, samples)

    def _row(self, work: Workload, samples: dict[str, list[float]]) -> Row:
        model, precision, threads = self._model, self._precision, self._threads
        row = Row(work.name, model.name, model.suffix, precision.name, threads, samples, None)
        share = fraction(model, precision, self._weight_bytes, threads, work, row.medians()[BONES])
        return Row(work.name, model.name, model.suffix, precision.name, threads, samples, share)

    def close(self) -> None:
        self._sessions.clear()
        self._stack.close()


def measured(options: argparse.Namespace, modules: Sequence[str]) -> Iterator[Row]:
    models = MODELS[:1] if options.quick else MODELS
    for model in models:
        for precision in model.precisions[:1] if options.quick else model.precisions:
            for threads in options.threads:
                place = f"{model.suffix}.{precision.name}.{threads}"
                wanted = [work for work in options.workloads if fnmatch.fnmatch(f"{work.name}{place}", options.only)]
                if not wanted:
                    continue
                group = Group(model, precision, threads, options.peers_python, modules)
                try:
                    for work in wanted:
                        row = group.measure(work)
                        print(line(row), flush=True)
                        yield row
                finally:
                    group.close()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke figure within a minute: three rows")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="rows, such as 'prefill_*.int4.1' or '*_1b.*'")
    parser.add_argument("--threads", default="1,2", help="numbers of threads, for all engines alike")
    parser.add_argument("--rounds", type=int, default=99, metavar="N", help="at most N samples of each engine a row")
    parser.add_argument("--no-peers", action="store_true", help="Bones alone")
    parser.add_argument("--peers-python", type=Path, default=ROOT / "build" / "bench-venv" / "bin" / "python")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the raw samples as JSON")
    options = parser.parse_args()
    options.threads = [1] if options.quick else [int(count) for count in options.threads.split(",")]
    workloads = QUICK if options.quick else WORKLOADS
    options.workloads = [replace(work, rounds=min(work.rounds, max(1, options.rounds))) for work in workloads]
    return options


def present(options: argparse.Namespace) -> list[str]:
    """Modules of the peers that can be asked; says which cannot and why."""
    if options.no_peers:
        print("no peers, as asked: no ratios")
        return []
    modules = installed(options.peers_python)
    for missing in sorted({peer.module for model in MODELS for p in model.precisions for peer in p.peers} - {*modules}):
        print(
            f"{missing} left out: it is not installed in {options.peers_python.parents[1]}; `make bench-setup` does it"
        )
    return modules


def main() -> None:
    options = arguments()
    modules = present(options)
    rows = []
    for row in measured(options, modules):
        rows.append(row)
        if options.out is not None:  # after each: the whole run takes the better part of an hour
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / "engine.json").write_text(json.dumps([row.raw() for row in rows], indent=1))
    print(f"\n{table(rows)}\n")
    print(json.dumps({"bench": "engine", "figures": figures(rows)}))


if __name__ == "__main__":
    main()
