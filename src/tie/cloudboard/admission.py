"""What cloudboardd checks of a request's cleartext before a pair is given to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tie.api.cloudboard.v1 import cloudboard_pb2 as pb
from tie.cloudboard.keyring import Keyring
from tie.contracts.errors import InvalidRequest
from tie.contracts.limits import MAX_NAME_BYTES, MAX_TRACE_ID_BYTES
from tie.envelope import wrapped_key
from tie.envelope.wrapped_key import WrappedKey

WORKLOAD: Final = "tie-cloud-app"
MAX_ROUTING_VALUES: Final = 16
MAX_ROUTING_VALUE_BYTES: Final = 256


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request whose cleartext is in order and whose wrapped key was not seen before."""

    wrapped: WrappedKey
    metadata: dict[str, str]


def admit(parameters: pb.Parameters, keyring: Keyring) -> Admitted:
    """Raises InvalidRequest, EnvelopeRefused, Replayed or OverCapacity. Notes the wrapped key as seen."""
    _check_cleartext(parameters)
    key = keyring.find(parameters.decryption_key.key_id)
    wrapped = wrapped_key.parse(parameters.decryption_key.encrypted_payload)
    if wrapped.key_number != key.key_number:
        raise InvalidRequest("decryption_key.encrypted_payload", "its key number is not the one of key_id")
    keyring.note(key, parameters.decryption_key.encrypted_payload)
    return Admitted(wrapped, dict(parameters.workload.parameters))


def _check_cleartext(parameters: pb.Parameters) -> None:
    if parameters.workload.name != WORKLOAD:
        raise InvalidRequest("workload.name", f"this node serves {WORKLOAD} only")
    routing = parameters.workload.parameters
    if len(routing) > MAX_ROUTING_VALUES:
        raise InvalidRequest("workload.parameters", f"{len(routing)} entries, the limit is {MAX_ROUTING_VALUES}")
    for name, value in routing.items():
        if len(name.encode()) > MAX_NAME_BYTES or len(value.encode()) > MAX_ROUTING_VALUE_BYTES:
            limits = f"{MAX_NAME_BYTES} and {MAX_ROUTING_VALUE_BYTES}"
            raise InvalidRequest("workload.parameters", f"a name or value is longer than {limits} bytes")
    trace_id = parameters.request_id
    if len(trace_id) > MAX_TRACE_ID_BYTES or not (trace_id.isascii() and trace_id.isprintable()):
        raise InvalidRequest("request_id", f"not at most {MAX_TRACE_ID_BYTES} printable ASCII bytes")
