"""Takes the engine's answers to Triton on a thread of its own, so that no step waits for a send.

A request's answers gather in its outbox; whatever has gathered by the time the sender comes to it goes out as one
response. A first token goes out at once, and so does an end; between them responses keep a distance that grows with
the number of streams, for each costs the machine as much time, here, in Triton and in the client, as a tenth of the
token's own. The final flag always goes out, whatever else fails: without it the client would hang. The same thread
asks Triton whether a client cancelled, since only one thread talks to Triton's objects.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from tie.afm_runtime.forwarding import Logprobs
from tie.api.afm.v1 import afm_pb2
from tie.servicekit import logs

CANCEL_POLL_S: Final = 0.02
RESPONSE_GAP_S: Final = 0.003
"""Between two responses of a stream, for each stream that is open: a response costs about a tenth of it in all."""


class ResponseChannel(Protocol):
    """One request's way back through Triton (`model` makes it); used by the sender's thread only."""

    def send(self, tokens: list[int], event: bytes, is_final: bool) -> None:
        """One response. Raises whatever Triton raises when the client is gone."""

    def send_final_flag(self) -> None:
        """Ends the stream without content."""

    def is_cancelled(self) -> bool:
        """Whether the client cancelled its call."""


_Item = tuple[int, int, Logprobs | None] | afm_pb2.Finish


class Outbox:
    """A `sequence.ReplySink`: filled by the engine's thread, emptied by the sender's."""

    def __init__(self, channel: ResponseChannel, sender: Sender) -> None:
        self.channel = channel
        self._sender = sender
        self._items: deque[_Item] = deque()
        self._last_word: tuple[afm_pb2.Usage, afm_pb2.Failure | None] | None = None
        self.is_posted = False
        self.is_urgent = False
        """Set with an end, which does not keep the distance."""
        self.due = 0.0
        """When the next response may go out, in time.monotonic() seconds; the sender's."""
        self.is_broken = False
        """Set by the sender when a response could not be sent: only the final flag is still tried."""
        self.is_ended = False
        """Set by the sender with the last word: a post that was on its way then has nothing to say."""

    def token(self, choice: int, token: int, logprobs: Logprobs | None) -> None:
        self._items.append((choice, token, logprobs))
        self._sender.note(self)

    def finish(self, finish: afm_pb2.Finish) -> None:
        self._items.append(finish)
        self._hurry()

    def close(self, usage: afm_pb2.Usage, failure: afm_pb2.Failure | None) -> None:
        self._last_word = (usage, failure)
        self._hurry()

    def _hurry(self) -> None:
        if not self.is_urgent:
            self.is_urgent, self.is_posted = True, False  # it may lie with the sender until it is due
        self._sender.note(self)

    def collect(self) -> tuple[list[int], afm_pb2.GenerateEvent, bool]:
        """Everything that has gathered, and whether it is the last."""
        last_word = self._last_word  # read first: what came before it is in the deque by now
        tokens: list[int] = []
        event = afm_pb2.GenerateEvent()
        run: afm_pb2.TokenRun | None = None
        while self._items:
            item = self._items.popleft()
            if isinstance(item, afm_pb2.Finish):
                event.finishes.append(item)
                continue
            choice, token, logprobs = item
            if run is None or run.choice != choice:
                run = event.runs.add(choice=choice)
            run.count += 1
            tokens.append(token)
            if logprobs is not None:
                run.logprobs.add(
                    logprob=logprobs.chosen, alternative_ids=logprobs.ids, alternative_logprobs=logprobs.values
                )
        if last_word is not None:
            event.usage.CopyFrom(last_word[0])
            if last_word[1] is not None:
                event.failure.CopyFrom(last_word[1])
        return tokens, event, last_word is not None


class Sender:
    """`open` and `flush` may be called from any thread, `note` from the engine's; `run` is the thread."""

    def __init__(self) -> None:
        self._posted: queue.SimpleQueue[Outbox | None] = queue.SimpleQueue()
        self._noted: list[Outbox] = []
        self._open: dict[Outbox, Callable[[], None]] = {}
        self._deferred: deque[Outbox] = deque()
        """Not due yet; in about the order in which they will be."""
        self._log = logs.logger()

    def open(self, channel: ResponseChannel) -> Outbox:
        return Outbox(channel, self)

    def watch(self, outbox: Outbox, on_cancelled: Callable[[], None]) -> None:
        """From now until its last word, a cancelled call or a failed send leads to `on_cancelled`."""
        self._open[outbox] = on_cancelled
        self._posted.put(outbox)  # wakes the poll

    def note(self, outbox: Outbox) -> None:
        """The outbox has something; it goes out with the next `flush`, so that a step wakes the sender once."""
        if not outbox.is_posted:
            outbox.is_posted = True
            self._noted.append(outbox)

    def flush(self) -> None:
        """Called by the engine's thread after each step."""
        for outbox in self._noted:
            self._posted.put(outbox)
        self._noted.clear()

    def refuse(self, channel: ResponseChannel, failure: afm_pb2.Failure) -> None:
        """Answers a request that was never handed to the engine; called from any thread."""
        outbox = Outbox(channel, self)
        outbox.is_posted = outbox.is_urgent = True  # posted here, not by the engine's flush
        outbox.close(afm_pb2.Usage(), failure)
        self._posted.put(outbox)

    def stop(self) -> None:
        """Ends the thread once everything posted before has gone out."""
        self._posted.put(None)

    def run(self) -> None:
        next_poll = 0.0
        while True:
            try:
                outbox = self._posted.get(timeout=self._patience())
            except queue.Empty:
                pass
            else:
                if outbox is None:
                    return
                self._take(outbox)
            now = time.monotonic()
            while self._deferred and self._deferred[0].due <= now:
                self._send(self._deferred.popleft())
            if self._open and now >= next_poll:
                next_poll = now + CANCEL_POLL_S
                self._poll_cancelled()

    def _patience(self) -> float | None:
        """How long nothing but a post needs the thread."""
        if self._deferred:
            return min(CANCEL_POLL_S, max(0.0, self._deferred[0].due - time.monotonic()))
        return CANCEL_POLL_S if self._open else None

    def _take(self, outbox: Outbox) -> None:
        if outbox.is_urgent or outbox.due <= time.monotonic():
            self._send(outbox)
        else:
            self._deferred.append(outbox)

    def _send(self, outbox: Outbox) -> None:
        if outbox.is_ended:
            return
        outbox.is_posted = outbox.is_urgent = False  # before collecting: what comes from now on posts it again
        tokens, event, is_final = outbox.collect()
        if is_final:
            outbox.is_ended = True
            self._open.pop(outbox, None)
        if not is_final and not tokens and not event.finishes:
            return
        outbox.due = time.monotonic() + RESPONSE_GAP_S * len(self._open)
        if not outbox.is_broken:
            try:
                outbox.channel.send(tokens, event.SerializeToString(), is_final)
            except Exception as error:  # the edge of a request: Triton raises many kinds when a client is gone
                outbox.is_broken = True
                self._log.warning("reply.not_sent", **logs.failure_place(error))
                if on_cancelled := self._open.get(outbox):
                    on_cancelled()
            else:
                return
        if is_final:
            self._end(outbox)

    def _end(self, outbox: Outbox) -> None:
        try:
            outbox.channel.send_final_flag()
        except Exception as error:  # the edge of a request: nobody is left to tell
            self._log.warning("reply.not_ended", **logs.failure_place(error))

    def _poll_cancelled(self) -> None:
        for outbox, on_cancelled in list(self._open.items()):
            try:
                is_cancelled = outbox.channel.is_cancelled()
            except Exception as error:  # the edge of a request: a request that cannot be asked is over
                self._log.warning("reply.not_askable", **logs.failure_place(error))
                is_cancelled = True
            if is_cancelled:
                self._open.pop(outbox, None)  # told once is enough
                on_cancelled()
