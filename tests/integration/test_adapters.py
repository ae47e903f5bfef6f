"""Adapters through a whole node: each request gets the one that it names, the tokens are those of Bones by itself."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from doubles.running_node import RunningNode, running_node
from doubles.tiny_adapter import add_adapters, tiny_pairs
from doubles.tiny_model import BPE_VOCAB_SIZE, TEST_TRUSTED, make_tiny_bundle, tiny_model, tokenizer_file

from tie.bones import Batch, Engine, Model, Sampling
from tie.catalog import open_bundle
from tie.clients import cloudboard
from tie.prompting.byte_bpe import ByteBpe
from tie.vre import Client, Delta
from tie.vre import Sampling as Asked
from tie.vre.exits import Exit
from tie.vre.request import raw_request

pytestmark = [pytest.mark.node, pytest.mark.timeout(240)]
PROMPT = "The quick brown fox"
COUNT = 24
ADAPTERS = ("", "formal", "terse")
MARKER = "marker7f3a"
GREEDY = Asked(max_tokens=COUNT, ignore_eos=True, logprobs=0)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("adapters") / "tiny"
    make_tiny_bundle(path, seed=3)
    terse = tiny_pairs(tiny_model(), 2, rank=40, matrices=["attn.v", "mlp.down"], strength=2.0)
    add_adapters(path, {"formal": tiny_pairs(tiny_model(), 1), "terse": terse})
    return path


@pytest.fixture(scope="module")
def node(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    configuration = tmp_path_factory.mktemp("config")
    (configuration / "tie").mkdir()
    (configuration / "tie" / "trusted-bundle-keys").write_text("".join(f"{key.hex()}\n" for key in TEST_TRUSTED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(configuration))
        with running_node(bundle) as running:
            yield running


@pytest.fixture(scope="module")
def by_itself(bundle: Path) -> dict[str, list[int]]:
    """What Bones generates, with each adapter, outside any node."""
    prompt = list(ByteBpe(tokenizer_file("byte_bpe"), BPE_VOCAB_SIZE).encode_literal(PROMPT, is_start=True))
    with open_bundle(bundle, trusted_keys=TEST_TRUSTED) as opened:
        model = Model(opened.description.model.to_json(), list(opened.weight_fds()), list(opened.adapter_fds()))
        places = {name: place for place, name in enumerate(opened.adapter_names)}
    return {adapter: generated(model, prompt, places.get(adapter, -1)) for adapter in ADAPTERS}


def generated(model: Model, prompt: list[int], adapter: int) -> list[int]:
    engine = Engine(model, block_count=1, block_size_tokens=512, kv_dtype="f32", threads=1)
    tokens, given = list(prompt), prompt
    while len(tokens) < len(prompt) + COUNT:
        batch = Batch(
            token_ids=np.array(given, np.int32),
            query_lens=np.array([len(given)], np.int32),
            context_lens=np.array([len(tokens)], np.int32),
            block_tables=np.zeros(1, np.int32),
            block_table_offsets=np.array([0, 1], np.int32),
            sample=np.ones(1, np.bool_),
            sampling=[Sampling(0.0)],
            adapters=np.array([adapter], np.int32),
        )
        given = engine.forward(batch).tokens.tolist()
        tokens += given
    return tokens[len(prompt) :]


def said(node: RunningNode, adapter: str) -> list[int]:
    with Client(cloudboard.read_address(node.run_dir), allow_development_attestation=True) as client:
        events = list(client.ask(raw_request(PROMPT, GREEDY, adapter=adapter)))
    return [entry.token_id for event in events if isinstance(event, Delta) for entry in event.logprobs]


@pytest.mark.parametrize("adapter", [MARKER, "Formal", "formal "])
def test_an_adapter_that_the_model_does_not_have_is_a_typed_error(node: RunningNode, adapter: str) -> None:
    answer = node.ask("--raw", PROMPT, "--adapter", adapter)
    assert answer.exit_code == Exit.NODE_ERROR
    error = answer.first("error")
    assert (error["kind"], error["where"]) == ("model_not_found", "adapter")
    assert MARKER not in str(error) + node.logs()


def test_each_adapter_says_what_bones_says_with_it(node: RunningNode, by_itself: dict[str, list[int]]) -> None:
    assert len({tuple(tokens) for tokens in by_itself.values()}) == len(ADAPTERS)
    for adapter in ADAPTERS:
        assert said(node, adapter) == by_itself[adapter], adapter


def test_requests_with_and_without_adapters_run_beside_each_other(
    node: RunningNode, by_itself: dict[str, list[int]]
) -> None:
    asked = [*ADAPTERS, *ADAPTERS]
    with ThreadPoolExecutor(len(asked)) as threads:
        answers = list(threads.map(lambda adapter: said(node, adapter), asked))
    assert answers == [by_itself[adapter] for adapter in asked]


def test_the_command_line_names_one_too(node: RunningNode) -> None:
    options = ("--raw", PROMPT, "--max-tokens", str(COUNT), "--ignore-eos")
    plain, formal, again = (
        node.ask(*options, *more) for more in ((), ("--adapter", "formal"), ("--adapter", "formal"))
    )
    assert plain.exit_code == formal.exit_code == Exit.OK
    assert plain.text != formal.text == again.text
    assert plain.first("usage")["prompt"] == formal.first("usage")["prompt"]
