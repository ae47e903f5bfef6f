"""Our minimal description of Triton's protocol against NVIDIA's own, field by field, in pools of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from doubles.nvidia_protocol import service_file
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from tie.api.triton import grpc_service_pb2 as ours

SERVICE = "GRPCInferenceService"


def messages(parents: object) -> Iterator[Descriptor]:
    found: list[Descriptor] = list(parents.values())  # type: ignore[attr-defined]
    for message in found:
        yield message
        yield from messages(message.nested_types_by_name)


OURS = list(messages(ours.DESCRIPTOR.message_types_by_name))
FIELDS = [field for message in OURS for field in message.fields]
METHODS = list(ours.DESCRIPTOR.services_by_name[SERVICE].methods)


def theirs(full_name: str) -> Descriptor:
    found: Descriptor = service_file().pool.FindMessageTypeByName(full_name)
    return found


def shape(field: FieldDescriptor) -> dict[str, object]:
    """All that decides how the field is written."""
    return {
        "number": field.number,
        "type": field.type,
        "repeated": field.is_repeated,
        "message": field.message_type.full_name if field.message_type else None,
        "oneof": field.containing_oneof.name if field.containing_oneof else None,
        "packed": field.is_packed,
        "presence": field.has_presence,
    }


def signature(method: MethodDescriptor) -> tuple[object, ...]:
    return (
        method.input_type.full_name, method.output_type.full_name, method.client_streaming, method.server_streaming,
    )  # fmt: skip


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.full_name)
def test_every_field_of_ours_is_theirs(field: FieldDescriptor) -> None:
    other = theirs(field.containing_type.full_name).fields_by_name[field.name]
    assert shape(field) == shape(other)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_rpc_of_ours_is_theirs(method: MethodDescriptor) -> None:
    other = service_file().services_by_name[SERVICE].methods_by_name[method.name]
    assert signature(method) == signature(other)
    assert method.full_name == other.full_name


def test_the_pools_are_apart_and_something_is_compared() -> None:
    assert service_file().pool is not ours.DESCRIPTOR.pool
    assert len(FIELDS) > 20
    assert {method.name for method in METHODS} >= {"ModelReady", "ModelStreamInfer"}
