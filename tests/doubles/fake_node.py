"""A CloudBoard on a real socket that opens real envelopes and answers from a script: what a device's client meets.

A script gets the opened request and yields what the node does next: messages to seal, or one of the faults below.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

import grpc

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.api.cloudboard.v1 import cloudboard_pb2_grpc
from tie.api.inference.v1 import inference_pb2 as ipb
from tie.envelope import node as envelope
from tie.envelope import wrapped_key
from tie.envelope.framing import Outcome
from tie.envelope.suites import X25519_SHA256_AES128GCM as SUITE

Script = Callable[[ipb.InferenceRequest], Iterable[Any]]


@dataclass(frozen=True)
class Fault:
    """Something a node must not do, or an end that it may come to."""

    kind: str
    """abort (with `code`), cut (end the stream), tamper, swap, await_terminate, hang."""
    code: grpc.StatusCode = grpc.StatusCode.INTERNAL


ABORT_BUSY: Final = Fault("abort", grpc.StatusCode.RESOURCE_EXHAUSTED)
CUT: Final = Fault("cut")
TAMPER: Final = Fault("tamper")
AWAIT_TERMINATE: Final = Fault("await_terminate")
HANG: Final = Fault("hang")


def delta(text: str, index: int = 0) -> ipb.InferenceResponse:
    return ipb.InferenceResponse(delta=ipb.Delta(index=index, text=text))


def finish(reason: ipb.FinishReason.ValueType = ipb.FINISH_REASON_STOP, index: int = 0) -> ipb.InferenceResponse:
    return ipb.InferenceResponse(finish=ipb.Finish(index=index, reason=reason))


def usage(prompt: int, completion: int) -> ipb.InferenceResponse:
    return ipb.InferenceResponse(usage=ipb.Usage(prompt=prompt, completion=completion))


def paris(_: ipb.InferenceRequest) -> Iterator[Any]:
    yield from (delta("The capital is "), delta("Paris."), finish(), usage(7, 4), Outcome.OK)


@dataclass
class Seen:
    """What reached the node, for tests to look at."""

    requests: list[ipb.InferenceRequest] = field(default_factory=list)
    opened_bytes: list[int] = field(default_factory=list)
    terminates: int = 0
    attestations: int = 0
    half_closed: threading.Event = field(default_factory=threading.Event)


class FakeNode(cloudboard_pb2_grpc.CloudBoardServicer):
    """Use it as a context manager; `address` is set while it serves."""

    def __init__(self, script: Script = paris, address: str = "127.0.0.1:0") -> None:
        self.script = script
        self.seen = Seen()
        self.kind = pb.ATTESTATION_KIND_DEVELOPMENT
        self.lifetime_s = 3600
        self.max_batch_size = 4
        self.lies_about_key_id = False
        self.setup_code: grpc.StatusCode | None = None
        self._stopping = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(8))
        cloudboard_pb2_grpc.add_CloudBoardServicer_to_server(self, self._server)
        port = self._server.add_insecure_port(address)
        self.address = address if address.startswith("unix:") else f"127.0.0.1:{port}"
        self.renew_key()

    def renew_key(self) -> None:
        """As a restart does: requests sealed to the key before are refused."""
        self._private, self._public = SUITE.kem.generate()
        self._born = int(time.time())

    def attestation(self) -> pb.FetchAttestationResponse:
        now = self._born
        bundle = pb.AttestationBundle(
            kind=self.kind,
            key_number=1,
            kem=SUITE.kem.kem_id,
            kdf=SUITE.kdf_id,
            aead=SUITE.aead_id,
            public_key=self._public,
            not_before_unix_s=now - 10,
            not_after_unix_s=now + self.lifetime_s,
            model="fake",
            release="1",
            bundle_identity=bytes(32),
        ).SerializeToString()
        key_id = bytes(32) if self.lies_about_key_id else hashlib.sha256(bundle).digest()
        self._key_id = key_id
        return pb.FetchAttestationResponse(attestation_bundle=bundle, key_id=key_id, next_refresh_unix_s=now + 1800)

    def __enter__(self) -> FakeNode:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._server.stop(grace=0.2).wait(5)

    # The service.

    def FetchAttestation(self, request: Any, context: Any) -> pb.FetchAttestationResponse:  # noqa: N802
        self.seen.attestations += 1
        return self.attestation()

    def WatchLoadLevel(self, request: Any, context: Any) -> Iterator[pb.WatchLoadLevelResponse]:  # noqa: N802
        yield pb.WatchLoadLevelResponse(max_batch_size=self.max_batch_size, current_batch_size=1, optimal_batch_size=2)
        while context.is_active() and not self._stopping.wait(0.05):
            pass

    def InvokeWorkload(self, requests: Iterator[pb.InvokeWorkloadRequest], context: Any) -> Iterator[Any]:  # noqa: N802
        if self.setup_code is not None:
            context.abort(self.setup_code, "as the test asked")
        assert next(requests).WhichOneof("message") == "setup"
        yield pb.InvokeWorkloadResponse(setup_ack=pb.SetupAck())
        session = self._open(next(requests).parameters, context)
        for message in requests:
            session.open_chunk(message.request_chunk.encrypted_payload, message.request_chunk.is_final)
            if message.request_chunk.is_final:
                break
        data = session.take_request()
        self.seen.opened_bytes.append(len(data))
        request = ipb.InferenceRequest.FromString(data)
        self.seen.requests.append(request)
        terminated = self._watch_rest(requests)
        yield _chunk(session.seal_start(), False)
        yield from self._play(request, session, context, terminated)

    def _open(self, parameters: pb.Parameters, context: Any) -> envelope.NodeSession:
        wrapped = parameters.decryption_key.encrypted_payload
        if parameters.decryption_key.key_id != self._key_id:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unknown key")
        secret = SUITE.kem.decapsulate(self._private, wrapped_key.parse(wrapped).enc)
        return envelope.open_request(wrapped, secret)

    def _watch_rest(self, requests: Iterator[pb.InvokeWorkloadRequest]) -> threading.Event:
        terminated = threading.Event()

        def watch() -> None:
            try:
                for message in requests:
                    if message.WhichOneof("message") == "terminate":
                        self.seen.terminates += 1
                        terminated.set()
            except grpc.RpcError:
                return
            except Exception:
                return
            self.seen.half_closed.set()

        threading.Thread(target=watch, daemon=True).start()
        return terminated

    def _play(
        self, request: ipb.InferenceRequest, session: envelope.NodeSession, context: Any, terminated: threading.Event
    ) -> Iterator[pb.InvokeWorkloadResponse]:
        tamper = False
        for step in self.script(request):
            if isinstance(step, Outcome):
                yield _chunk(session.seal_summary(step), True)
            elif isinstance(step, Fault):
                if step.kind == "abort":
                    context.abort(step.code, "as the test asked")
                elif step.kind == "cut":
                    return
                elif step.kind == "tamper":
                    tamper = True
                elif step.kind == "await_terminate":
                    assert terminated.wait(10), "no Terminate came"
                else:
                    while context.is_active() and not self._stopping.wait(0.02):
                        pass
            else:
                sealed = session.seal_message(step.SerializeToString())
                yield _chunk(sealed[:-1] + bytes([sealed[-1] ^ 1]) if tamper else sealed, False)


def _chunk(payload: bytes, is_final: bool) -> pb.InvokeWorkloadResponse:
    return pb.InvokeWorkloadResponse(response_chunk=pb.SealedChunk(encrypted_payload=payload, is_final=is_final))
