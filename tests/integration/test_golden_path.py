"""The whole path in f32 gives the tokens that `transformers` gives on the same weights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from doubles import golden
from doubles.running_node import ROOT, RunningNode, running_node

from tie.clients import cloudboard
from tie.vre import Client, Delta
from tie.vre.request import ChatMessage, Sampling

pytestmark = [pytest.mark.node, pytest.mark.timeout(600)]
TIE_GAP = 1e-2


@pytest.fixture(scope="module")
def f32_node() -> Iterator[RunningNode]:
    with running_node(ROOT / "build" / "bundles" / "smollm2-f32") as running:
        yield running


def test_every_chat_says_what_the_reference_says(f32_node: RunningNode) -> None:
    chats = golden.smollm2_chats()
    assert len(chats) >= 20
    sampling = Sampling(max_tokens=48, ignore_eos=True, logprobs=0)
    compared_tokens = 0
    with Client(cloudboard.read_address(f32_node.run_dir), allow_development_attestation=True) as client:
        for index, chat in enumerate(chats):
            messages = [ChatMessage(message["role"], message["content"]) for message in chat.messages]
            said = [
                entry.token_id
                for event in client.ask(messages, sampling)
                if isinstance(event, Delta)
                for entry in event.logprobs
            ]
            until = next((place for place, gap in enumerate(chat.gaps) if gap <= TIE_GAP), len(chat.output))
            assert said[:until] == chat.output[:until], f"chat {index}"
            compared_tokens += until
    assert compared_tokens > 20 * 24
