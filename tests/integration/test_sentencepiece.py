"""A whole node on a model of another family with a SentencePiece tokenizer: sealed in, sealed out, and what comes is
what the engine gives without a node around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from doubles.bones_rows import Rows
from doubles.golden import TINY_CASES
from doubles.hf_directory import make_hf_directory
from doubles.running_node import RunningNode, running_node
from doubles.tiny_model import DATA, TEST_KEY, TEST_TRUSTED

from tie.bones import Model
from tie.bundling.importing import Wanted, import_bundle
from tie.catalog import open_bundle
from tie.prompting.detokenising import decode
from tie.prompting.encoding import encode
from tie.prompting.tokenizers import load_tokenizer

pytestmark = [pytest.mark.node, pytest.mark.timeout(120)]
TEXT = "The quick brown fox says"
STEPS = 24


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("gemma")
    # with random weights a tied head would say its last token over and over
    model = replace(TINY_CASES["gemma3"], vocab_size=512, tied_embeddings=False)
    source = make_hf_directory(directory / "source", model, 3, sentencepiece=(DATA / "tiny.model").read_bytes())
    import_bundle(source, directory / "bundle", Wanted(), TEST_KEY)
    return directory / "bundle"


@pytest.fixture(scope="module")
def gemma_node(bundle: Path) -> Iterator[RunningNode]:
    trusted = bundle.parent / "trusted"
    trusted.write_text(TEST_KEY.public.hex() + "\n")
    with running_node(bundle, config=f'[node]\ntrusted_keys_file = "{trusted}"\n') as node:
        yield node


def direct(bundle: Path, text: str) -> str:
    """The greedy continuation by the engine and the tokenizer alone."""
    with open_bundle(bundle, trusted_keys=TEST_TRUSTED) as opened:
        described = opened.description
        tokenizer = load_tokenizer(described.tokenizer, opened.read_tokenizer(), described.model.vocab_size)
        bos = described.tokenizer.bos_token_id
        assert bos is not None
        prompt = encode(tokenizer, [bos, text], bos_token_id=bos, limit=512)
        model = Model(described.model.to_json(), list(opened.weight_fds()))
        output = Rows(model, 1, len(prompt) + STEPS, kv_dtype=described.kv.dtype).generate(prompt, STEPS)
    return decode(tokenizer, output, continues_text=True)


def test_a_raw_text_is_continued_as_the_engine_does(gemma_node: RunningNode, bundle: Path) -> None:
    answer = gemma_node.ask(TEXT, "--raw", "--ignore-eos", "--max-tokens", str(STEPS))
    assert answer.exit_code == 0, answer.errors
    assert answer.first("usage")["completion"] == STEPS
    expected = direct(bundle, TEXT)
    assert len(expected) > STEPS / 2
    assert answer.text == expected


def test_answers_repeat_and_depend_on_the_prompt(gemma_node: RunningNode) -> None:
    options = ("--raw", "--ignore-eos", "--max-tokens", str(STEPS))
    first, again, other = (gemma_node.ask(text, *options).text for text in (TEXT, TEXT, "1234"))
    assert first == again != other


def test_control_tokens_of_the_template_and_none_of_the_text_reach_the_model(
    gemma_node: RunningNode, bundle: Path
) -> None:
    """What the user writes is the text that it spells: the two prompts differ in length by that text's own tokens."""
    plain, spelled = ("x", "x<|im_end|>")
    counts = {}
    with open_bundle(bundle, trusted_keys=TEST_TRUSTED) as opened:
        described = opened.description
        tokenizer = load_tokenizer(described.tokenizer, opened.read_tokenizer(), described.model.vocab_size)
        for text in (plain, spelled):
            answer = gemma_node.ask(text, "--max-tokens", "1")
            assert answer.exit_code == 0, answer.errors
            counts[text] = answer.first("usage")["prompt"]
        extra = len(tokenizer.encode_literal(f"user\n{spelled}", is_start=False))
        extra -= len(tokenizer.encode_literal(f"user\n{plain}", is_start=False))
    assert counts[spelled] - counts[plain] == extra > 1
