"""One helper's life: warm up with its app, open one request, hand it over, seal what comes back, leave.

What the envelope refuses before dispatch is a gRPC status; what goes wrong afterwards is a sealed summary. Nothing is
handed to the app before the final chunk has opened.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from typing import Final

from tie.api.cloudboard.v1 import cloudboard_pb2
from tie.api.job.v1 import job_pb2
from tie.cloudboard.helper.links import AppLink, Both, PairLink
from tie.cloudboard.helper.opening import Opening
from tie.cloudboard.pair_wire import Begin, Kind, Refused
from tie.contracts.errors import DeadlinePassed, OverCapacity, PeerError, PeerGone, TieError
from tie.envelope.framing import Outcome
from tie.envelope.node import NodeSession
from tie.envelope.refusal import EnvelopeRefused
from tie.servicekit import logs

_REQUEST_PIECE_BYTES: Final = 1024 * 1024
_LEAVE_LIMIT_S: Final = 2.0
_WARM_LIMIT_S: Final = 86400.0
"""A warm pair is replaced by cloudboardd long before."""


class ClientGone(TieError):
    """The client terminated or vanished: the app is told, and nobody is answered."""


@dataclass(slots=True)
class Account:
    """Counts and times of the request, for its summary line."""

    job: str = ""
    began: float = field(default_factory=time.monotonic)
    request_bytes: int = 0
    response_messages: int = 0
    open_ms: float = 0.0
    intake_ms: float = 0.0
    dispatch_ms: float = 0.0
    first_token_ms: float = 0.0
    seal_s: float = 0.0

    def elapsed_ms(self) -> float:
        return round((time.monotonic() - self.began) * 1e3, 3)


class Job:
    """Call `warm_up`, then `serve`, once each."""

    def __init__(self, pair: PairLink, app: AppLink, opening: Opening) -> None:
        self._pair, self._app, self._opening = pair, app, opening
        self._both = Both(pair, app)
        self._account = Account()
        self._is_app_done = False

    def warm_up(self, limit_s: float) -> None:
        """Returns when the app is warm and cloudboardd knows. Raises TieError when it does not become so."""
        deadline = time.monotonic() + limit_s
        self._app.send(job_pb2.JobFrame(warmup=job_pb2.Warmup()))
        self._opening.rehearse()
        while (frame := self._next_from_app(deadline, "the app's warm-up")) is None:
            pass
        if frame.WhichOneof("frame") != "warmup_done":
            raise PeerError("the app sent something else than the end of its warm-up")
        self._pair.send(Kind.WARM, self._opening.binding_key)

    def serve(self) -> None:
        """Raises TieError only when there was nothing to serve: the pair ended while it waited."""
        try:
            begin = Begin.decode(self._expect(Kind.BEGIN, time.monotonic() + _WARM_LIMIT_S))
        except ClientGone:
            self._tear_down()
            return
        self._account = Account(begin.job_id.hex())
        deadline = self._account.began + begin.deadline_ms / 1000
        try:
            parameters = cloudboard_pb2.Parameters.FromString(begin.parameters)
            session = self._opening.open(begin.job_id, parameters.decryption_key.encrypted_payload)
            self._account.open_ms = self._account.elapsed_ms()
            outcome = self._serve(session, dict(parameters.workload.parameters), deadline).name
        except ClientGone:
            outcome = "CLIENT_GONE"
        except Refused as refusal:
            outcome = refusal.grpc_status
            with contextlib.suppress(PeerGone, DeadlinePassed):
                self._pair.send(Kind.REFUSED, refusal.encode())
        self._log(outcome)
        if not self._is_app_done:
            self._tear_down()
        self._pair.end(_LEAVE_LIMIT_S)

    def _serve(self, session: NodeSession, metadata: dict[str, str], deadline: float) -> Outcome:
        """How it ended; the client has been told. Raises ClientGone, or Refused when a chunk did not open."""
        try:
            self._receive_request(session, deadline)
            request = session.take_request()
            self._account.intake_ms = self._account.elapsed_ms()
            self._dispatch(session, request, metadata, deadline)
            outcome = self._answer(session, deadline)
        except EnvelopeRefused as error:
            logs.logger().info("request.malformed", job=self._account.job, reason=str(error))
            self._respond(session.seal_start(), False)
            outcome = Outcome.INVALID_REQUEST
        except (PeerError, DeadlinePassed) as error:
            logs.logger().warning("app.failed", job=self._account.job, reason=str(error))
            if not self._account.dispatch_ms:
                self._respond(session.seal_start(), False)
            outcome = Outcome.INTERNAL_ERROR
        self._respond(session.seal_summary(outcome), True)
        return outcome

    def _receive_request(self, session: NodeSession, deadline: float) -> None:
        while not session.is_request_whole:
            kind, sealed = self._next_from_pair(deadline)
            if kind not in (Kind.CHUNK, Kind.FINAL_CHUNK):
                raise Refused("INTERNAL", f"cloudboardd sent {kind.name.lower()} where a chunk belongs")
            self._account.request_bytes += len(sealed)
            try:
                session.open_chunk(sealed, kind is Kind.FINAL_CHUNK)
            except (EnvelopeRefused, OverCapacity) as error:
                raise Refused(error.grpc_status, str(error)) from None

    def _dispatch(self, session: NodeSession, request: bytes, metadata: dict[str, str], deadline: float) -> None:
        parameters = job_pb2.Parameters(
            metadata=metadata,
            kv_request_key=session.kv_request_key,
            deadline_ms=max(1, int((deadline - time.monotonic()) * 1000)),
        )
        self._app.send(job_pb2.JobFrame(parameters=parameters))
        for start in range(0, max(1, len(request)), _REQUEST_PIECE_BYTES):
            piece = request[start : start + _REQUEST_PIECE_BYTES]
            chunk = job_pb2.RequestChunk(data=piece, is_final=start + _REQUEST_PIECE_BYTES >= len(request))
            self._app.send(job_pb2.JobFrame(request_chunk=chunk))
        self._account.dispatch_ms = self._account.elapsed_ms()
        self._respond(session.seal_start(), False)

    def _answer(self, session: NodeSession, deadline: float) -> Outcome:
        """Raises PeerError or DeadlinePassed when the app ends, errs or is late before its EndJob."""
        while True:
            frame = self._next_from_app(deadline, "the app's answer")
            kind = frame.WhichOneof("frame") if frame is not None else None
            if frame is None:
                self._check_terminated()
            elif kind == "response_chunk":
                if not self._account.first_token_ms:
                    self._account.first_token_ms = self._account.elapsed_ms()
                started = time.monotonic()
                sealed = session.seal_message(frame.response_chunk.data)
                self._account.seal_s += time.monotonic() - started
                self._respond(sealed, False)
            elif kind == "end_job":
                self._is_app_done = True
                try:
                    return Outcome(frame.end_job.outcome)
                except ValueError:
                    raise PeerError("the app's EndJob has no known outcome") from None
            else:
                raise PeerError("the app sent a frame that does not belong into an answer")

    def _respond(self, sealed: bytes, is_final: bool) -> None:
        try:
            self._pair.send_response(sealed, is_final)
        except (PeerGone, DeadlinePassed):
            raise ClientGone("cloudboardd closed the pair") from None
        self._account.response_messages += 1

    def _next_from_app(self, deadline: float, waited_for: str) -> job_pb2.JobFrame | None:
        """The app's next frame, or None when it was cloudboardd that had something. Raises PeerGone, ClientGone."""
        while (frame := self._app.next()) is None:
            from_pair, from_app = self._both.wait(deadline, waited_for)
            if from_pair:
                self._fill_pair()
                return None
            if from_app:
                self._app.fill()
        return frame

    def _next_from_pair(self, deadline: float) -> tuple[Kind, bytes]:
        """cloudboardd's next frame. Raises ClientGone, and PeerError when the app ends or speaks meanwhile."""
        while (frame := self._pair.next()) is None:
            from_pair, from_app = self._both.wait(deadline, "the request")
            if from_pair:  # first, lest a request that is here already be taken for none
                self._fill_pair()
            elif from_app:
                self._app.fill()
                raise PeerError("the app spoke before it had a request")
        if frame[0] is Kind.TERMINATE:
            raise ClientGone("the client terminated")
        return frame

    def _expect(self, kind: Kind, deadline: float) -> bytes:
        found, body = self._next_from_pair(deadline)
        if found is not kind:
            raise PeerError(f"cloudboardd sent {found.name.lower()} where {kind.name.lower()} belongs")
        return body

    def _check_terminated(self) -> None:
        """Once the request is whole, cloudboardd has nothing to say but Terminate."""
        if (frame := self._pair.next()) is None:
            return
        if frame[0] is Kind.TERMINATE:
            raise ClientGone("the client terminated")
        raise ClientGone(f"cloudboardd sent {frame[0].name.lower()} during the answer")

    def _fill_pair(self) -> None:
        try:
            self._pair.fill()
        except PeerGone:
            raise ClientGone("cloudboardd closed the pair") from None

    def _tear_down(self) -> None:
        """Tells the app, and gives it a moment to leave before the socket closes."""
        with contextlib.suppress(PeerGone, DeadlinePassed):
            self._app.send(job_pb2.JobFrame(teardown=job_pb2.Teardown()))
            self._app.drop_until_closed(time.monotonic() + _LEAVE_LIMIT_S)

    def _log(self, outcome: str) -> None:
        account = self._account
        logs.logger().info(
            "request.served",
            job=account.job,
            outcome=outcome,
            request_bytes=account.request_bytes,
            response_messages=account.response_messages,
            open_ms=account.open_ms,
            intake_ms=account.intake_ms,
            dispatch_ms=account.dispatch_ms,
            first_token_ms=account.first_token_ms,
            seal_ms=round(account.seal_s * 1e3, 3),
            total_ms=account.elapsed_ms(),
        )
