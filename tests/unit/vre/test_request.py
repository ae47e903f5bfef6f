from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.api.inference.v1 import inference_pb2 as pb
from tie.contracts.errors import InvalidRequest
from tie.contracts.limits import MAX_REQUEST_BYTES, REQUEST_BUCKETS
from tie.vre.request import ChatMessage, Sampling, chat_request, padded, raw_request


@pytest.mark.parametrize(
    ("sampling", "where"),
    [
        (Sampling(max_tokens=2**63), "sampling.max_tokens"),
        (Sampling(seed=-1), "sampling.seed"),
        (Sampling(seed=2**64), "sampling.seed"),
        (Sampling(logprobs=-1), "logprobs"),
        (Sampling(stop_token_ids=[2**31]), "stop_token_ids"),
        (Sampling(logit_bias={2**31: 1.0}), "sampling.logit_bias"),
        (Sampling(stop=["fine", "\udcff"]), "stop_strings[1]"),
    ],
)
def test_what_does_not_fit_the_message_is_refused_by_field(sampling: Sampling, where: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        raw_request("x", sampling)
    assert raised.value.where == where


def test_text_that_is_not_utf8_is_refused_without_being_repeated() -> None:
    with pytest.raises(InvalidRequest, match=r"chat.messages\[0\]: is not UTF-8 at character 4") as raised:
        chat_request([ChatMessage("user", "abcd\udcffsecret")])
    assert "secret" not in str(raised.value)


def test_a_name_that_is_not_utf8_is_refused_by_its_field() -> None:
    with pytest.raises(InvalidRequest, match=r"^adapter: is not UTF-8 at character 6$"):
        chat_request([ChatMessage("user", "x")], adapter="secret\udcff")
    with pytest.raises(InvalidRequest, match=r"^adapter: "):
        raw_request("x", adapter="\udcff")


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="none of system, user"):
        chat_request([ChatMessage("robot", "x")])


def test_a_request_past_the_limit_is_refused_before_it_is_sent() -> None:
    with pytest.raises(InvalidRequest, match=str(MAX_REQUEST_BYTES)):
        padded(raw_request("x" * (MAX_REQUEST_BYTES + 1)))


@pytest.mark.parametrize("value", [0, -1, 1, 2**31 - 1, 2**63 - 1])
def test_ranges_are_the_nodes_to_check(value: int) -> None:
    assert raw_request("x", Sampling(max_tokens=value)).sampling.max_tokens == value


def test_what_is_not_given_is_not_sent_and_greedy_is() -> None:
    request = raw_request("x")
    assert request.sampling.temperature == 0.0
    assert [field.name for field, _ in request.sampling.ListFields()] == ["temperature"]
    assert not request.HasField("logprobs")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 5000) | st.sampled_from([2**n + d for n in range(10, 16) for d in range(-150, 3)]))
def test_every_size_lands_on_a_bucket_and_reads_back(size: int) -> None:
    request = raw_request("x" * size)
    data = padded(request)
    assert len(data) in REQUEST_BUCKETS
    read = pb.InferenceRequest.FromString(data)
    assert not read.padding.strip(b"\0")
    read.ClearField("padding")
    assert read == request


def test_beyond_the_last_bucket_a_request_goes_as_it_is() -> None:
    size = REQUEST_BUCKETS[-1] + 5
    assert size < len(padded(raw_request("x" * size))) < size + 64


def test_no_repr_shows_what_a_person_wrote() -> None:
    assert "secret" not in repr(ChatMessage("user", "secret"))
    assert "secret" not in repr(Sampling(stop=["secret"]))
