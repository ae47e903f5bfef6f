"""Clients of a node's runtime, as its request processes are: a connection each, all in a process of their own."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from tie.api.afm.v1 import afm_pb2
from tie.clients.inference import InferenceClient
from tie.clients.runtime_link import RuntimeLink
from tie.contracts.paths import RunPaths

TOKENS_A_SIGN = 128
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. It is sent `after_s` after the others of its load."""

    prompt: Sequence[int]
    answer: int
    grammar: str = ""
    after_s: float = 0.0


@dataclass(slots=True)
class Answered:
    """Times are of time.perf_counter(), which all processes of a machine share."""

    begun: float = 0.0
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    """When a message came, and with how many tokens."""
    failure: str = ""

    @property
    def tokens(self) -> int:
        return sum(count for _, count in self.arrivals)

    @property
    def first_token_s(self) -> float:
        return self.arrivals[0][0] - self.begun


class Streams:
    """`run` sends a load of requests at once and gives what came of each, in order."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def run(self, load: Sequence[Ask]) -> list[Answered]:
        self._connection.send(load)
        answered: list[Answered] = self._connection.recv()
        for one, asked in zip(answered, load, strict=True):
            if one.failure or one.tokens != asked.answer:
                raise RuntimeError(f"{one.tokens} of {asked.answer} tokens came: {one.failure or 'no failure'}")
        return answered


@contextmanager
def streams(run_dir: Path, most: int) -> Iterator[Streams]:
    """As many clients, in a process of their own: their Python must not hold up the measuring one's."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, run_dir, most), daemon=True)
    process.start()
    try:
        yield Streams(ours)
    finally:
        ours.send(None)
        process.join(10)


def _serve(connection: Connection, run_dir: Path, most: int) -> None:
    paths = RunPaths(run_dir)
    clients = [InferenceClient(paths.triton_socket) for _ in range(most)]
    for client in clients:
        client.connect(10)
    while (load := connection.recv()) is not None:
        answered = [Answered() for _ in load]
        links = [RuntimeLink.connect(paths.runtime_socket, 10) for _ in load]
        threads = [
            threading.Thread(target=_ask, args=each) for each in zip(clients, links, load, answered, strict=False)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for link in links:
            link.close()
        connection.send(answered)


def _ask(client: InferenceClient, link: RuntimeLink, asked: Ask, answered: Answered) -> None:
    params = afm_pb2.GenerateParams(
        ticket=link.ticket,
        bundle_identity=link.bundle_identity,
        sampling=afm_pb2.Sampling(top_p=1.0, repetition_penalty=1.0),
        max_tokens=asked.answer,
        ignore_eos=True,
        n=1,
        grammar=asked.grammar,
    )
    time.sleep(asked.after_s)
    answered.begun = time.perf_counter()
    taken = told = 0
    for reply in client.generate(asked.prompt, params, deadline_s=TIMEOUT_S, token_gap_s=TIMEOUT_S):
        if reply.tokens:
            answered.arrivals.append((time.perf_counter(), len(reply.tokens)))
        taken += len(reply.tokens)
        if taken - told >= TOKENS_A_SIGN:
            link.took(taken)
            told = taken
        if reply.event.HasField("failure"):
            answered.failure = afm_pb2.FailureKind.Name(reply.event.failure.kind)
