"""The runtime's parts, put together: link, intake, engine and sender, each on its thread, for one attached model.

`model` hands it Triton's requests; it knows nothing of Triton itself.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from tie.afm_runtime import intake
from tie.afm_runtime.control import ControlServer
from tie.afm_runtime.decoding.grammar import GrammarFault, Matcher, Vocabulary
from tie.afm_runtime.decoding.stops import TokenBytes
from tie.afm_runtime.engine import Engine
from tie.afm_runtime.forwarding import Forwarding, Ids
from tie.afm_runtime.intake import Refused, Serves
from tie.afm_runtime.link import LinkServer
from tie.afm_runtime.meters import Meters
from tie.afm_runtime.orders import Orders
from tie.afm_runtime.paging.pool import BlockPool
from tie.afm_runtime.prefix.cache import PoolMemory
from tie.afm_runtime.prefix.keeping import Keeping, PrefixStore
from tie.afm_runtime.prefix.trie import Trie
from tie.afm_runtime.replies import ResponseChannel, Sender
from tie.afm_runtime.scheduling.limits import Limits
from tie.afm_runtime.scheduling.scheduler import Scheduler
from tie.afm_runtime.sequence import Request
from tie.afm_runtime.tickets import Tickets
from tie.api.afm.v1 import afm_pb2
from tie.contracts.paths import RunPaths
from tie.servicekit import logs

EXIT_SUSPECT: Final = 70
_JOIN_S: Final = 2.0
_GRAMMAR_BUILDERS: Final = 2


@dataclass(frozen=True, slots=True)
class Attached:
    """A model that is ready to run: what `attach` made of the bundle, or a test of its double."""

    serves: Serves
    forwarding: Forwarding
    token_bytes: TokenBytes
    block_count: int
    limits: Limits
    vocabulary: Vocabulary | None = None
    """For grammars; None where the bundle does not say what its tokens spell."""
    store: PrefixStore | None = None
    """Who keeps the prefix pool; None where nobody does."""
    restored: tuple[Trie, PoolMemory] | None = None
    """What an earlier runtime left there."""


class IncomingTensors(Protocol):
    """The inputs of one request; each may be None, and reading one may raise Refused."""

    def tokens(self, most: int) -> Ids | None: ...
    def params(self) -> NDArray[np.uint8] | None: ...
    def images(self) -> NDArray[Any] | None: ...


class Serving:
    """Threads run from `start` to `stop`."""

    def __init__(
        self,
        attached: Attached,
        paths: RunPaths,
        *,
        admitted_uids: Collection[int] = (),
        control_uids: Collection[int] = (),
        on_suspect: Callable[[], None] | None = None,
    ) -> None:
        self._serves = attached.serves
        self._tickets = Tickets()
        self._sender = Sender()
        self._meters = Meters()
        self._pool = BlockPool(attached.block_count, attached.forwarding.zero_blocks)
        self.scheduler: Final = Scheduler(self._pool, attached.limits, attached.token_bytes)
        self._keeping = self._kept(attached)
        self._engine = Engine(
            attached.forwarding,
            self.scheduler,
            self._sender.flush,
            on_suspect or (lambda: os._exit(EXIT_SUSPECT)),
            self._meters,
            self._keeping,
        )
        self._link = LinkServer(
            paths.runtime_socket,
            self._tickets,
            bundle_identity=attached.serves.bundle_identity,
            context_length=attached.serves.longest(1),
            admitted_uids=admitted_uids,
        )
        self._control = ControlServer(
            paths.runtime_control_socket, self._orders(attached).answer, admitted_uids=control_uids
        )
        self._vocabulary = attached.vocabulary
        self._builders = ThreadPoolExecutor(_GRAMMAR_BUILDERS, thread_name_prefix="grammar")
        self._log = logs.logger()
        runs = {
            "engine": self._engine.run,
            "sender": self._sender.run,
            "link": self._link.run,
            "control": self._control.run,
        }
        self._threads = {name: threading.Thread(target=run, name=name, daemon=True) for name, run in runs.items()}

    def _kept(self, attached: Attached) -> Keeping:
        keeping = Keeping(
            attached.store,
            self.scheduler,
            self._pool,
            attached.forwarding,
            block_size=attached.limits.block_size,
            resident=attached.limits.prefix_resident,
        )
        if attached.restored is not None:
            keeping.restore(*attached.restored)
        return keeping

    def _orders(self, attached: Attached) -> Orders:
        return Orders(
            attached.serves,
            self._engine,
            self._keeping,
            meters=self._meters,
            scheduler=self.scheduler,
            pool=self._pool,
        )

    def start(self) -> None:
        for thread in self._threads.values():
            thread.start()

    def take(self, tensors: IncomingTensors, channel: ResponseChannel) -> None:
        """Hands one request over and returns; its answer, or its refusal, comes through `channel`."""
        try:
            self._take(tensors, channel)
        except Refused as refused:
            self._meters.requests_refused += 1
            self._log.info("request.refused", kind=afm_pb2.FailureKind.Name(refused.failure.kind))
            self._sender.refuse(channel, refused.failure)
        except Exception as error:  # the edge of a request: no other one may suffer from it
            self._log.error("request.not_taken", **logs.failure_place(error))
            failure = afm_pb2.Failure(kind=afm_pb2.FAILURE_KIND_INTERNAL, message="the request could not be read")
            self._sender.refuse(channel, failure)

    def stop(self) -> None:
        """What still runs is answered as draining; every answer goes out; the link closes last."""
        self._builders.shutdown()  # each build is bounded, and its request wants an answer
        self._engine.stop()
        self._threads["engine"].join(_JOIN_S)
        self._sender.stop()
        self._threads["sender"].join(_JOIN_S)
        for name, server in (("link", self._link), ("control", self._control)):
            server.stop()
            self._threads[name].join(_JOIN_S)

    def _take(self, tensors: IncomingTensors, channel: ResponseChannel) -> None:
        params = intake.parse(tensors.params())
        ticket = intake.claim(params, self._tickets)
        tokens = tensors.tokens(self._serves.context_length)
        admitted = intake.admit(params, tokens, tensors.images(), self._serves)
        outbox = self._sender.open(channel)
        request = Request(admitted, outbox)

        def abort() -> None:
            self._engine.abort(request)

        self._sender.watch(outbox, abort)
        if admitted.grammar:
            self._builders.submit(self._build, request)
        else:
            self._engine.submit(request)
        self._tickets.bind(ticket, abort, lambda tokens: self._engine.read(request, tokens))

    def _build(self, request: Request) -> None:
        """Off the engine's thread, which never waits for a grammar."""
        try:
            request.matcher = self._matcher(request.admitted.grammar)
        except GrammarFault:
            request.is_unbuildable = True
        except Exception as error:  # the edge of a request: without an answer its client would wait
            self._log.error("grammar.not_built", **logs.failure_place(error))
            request.is_unbuildable = True
        self._engine.submit(request)

    def _matcher(self, compiled: str) -> Matcher:
        if self._vocabulary is None:
            raise GrammarFault
        return self._vocabulary.matcher(compiled)
