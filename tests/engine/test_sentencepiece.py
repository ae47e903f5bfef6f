"""A SentencePiece model from a Hugging Face directory to text: imported, opened, run and read by our code, and held
against the sentencepiece library, which is given the very file."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import sentencepiece
from doubles.bones_rows import Rows
from doubles.golden import TINY_CASES
from doubles.hf_directory import make_hf_directory
from doubles.mistral_files import V1, V3, mistral_file
from doubles.tiny_model import DATA, TEST_KEY, TEST_TRUSTED

from tie.bones import Model
from tie.bundling.importing import Wanted, import_bundle
from tie.catalog import Bundle, open_bundle
from tie.prompting.detokenising import Utf8Stream, decode
from tie.prompting.encoding import encode
from tie.prompting.tokenizers import Tokenizer, load_tokenizer

# A second normaliser message overrides fields of the first: Gemma puts no space before a text.
NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"
TEXTS = (
    "The quick brown fox",
    "def f(x):\n    return x  # two",
    "  spaces  in   a row ",
    "naïve 索 😀 1234",
    "</s><s>",
)
STEPS = 24


@dataclass(frozen=True)
class Opened:
    bundle: Bundle
    tokenizer: Tokenizer
    library: Any

    def rows(self, length: int) -> Rows:
        model = Model(self.bundle.description.model.to_json(), list(self.bundle.weight_fds()))
        return Rows(model, 1, length)

    def prompt(self, text: str) -> list[int]:
        described = self.bundle.description.tokenizer
        assert described.bos_token_id is not None
        return encode(self.tokenizer, [described.bos_token_id, text], bos_token_id=described.bos_token_id, limit=512)


@pytest.fixture(
    scope="module",
    params=[
        ("gemma3", (DATA / "tiny.model").read_bytes() + NO_DUMMY_PREFIX, 512),
        ("gemma2", (DATA / "tiny.model").read_bytes(), 512),
        ("llama2", mistral_file(V1), 32_000),
        ("mistral-window", mistral_file(V3), 32_768),
    ],
    ids=lambda param: str(param[0]),
)
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    case, data, vocab_size = request.param
    directory = tmp_path_factory.mktemp("sentencepiece")
    # with random weights a tied head would say its last token over and over
    model = replace(TINY_CASES[case], vocab_size=vocab_size, tied_embeddings=False)
    source = make_hf_directory(directory / "source", model, 3, sentencepiece=data)
    import_bundle(source, directory / "bundle", Wanted(), TEST_KEY)
    library = sentencepiece.SentencePieceProcessor()
    library.LoadFromSerializedProto(data)
    with open_bundle(directory / "bundle", trusted_keys=TEST_TRUSTED) as bundle:
        described = bundle.description
        assert described.model == model
        tokenizer = load_tokenizer(described.tokenizer, bundle.read_tokenizer(), vocab_size)
        yield Opened(bundle, tokenizer, library)


def test_the_description_says_what_the_directory_says(opened: Opened) -> None:
    tokenizer = opened.bundle.description.tokenizer
    assert (tokenizer.kind, tokenizer.bos_token_id, tokenizer.add_bos) == ("sentencepiece", 1, True)
    assert tokenizer.eos_token_ids[0] == opened.library.eos_id() == 2


@pytest.mark.parametrize("text", TEXTS)
def test_a_prompt_is_what_the_library_encodes(opened: Opened, text: str) -> None:
    """Control tokens that a text spells stay text, to the library as to us."""
    assert opened.prompt(text) == [1, *opened.library.EncodeAsIds(text)]


def one_replacement(text: str) -> str:
    """The library replaces each byte of what is no character, we (as Python does) all that could have become one."""
    return re.sub("\N{REPLACEMENT CHARACTER}+", "\N{REPLACEMENT CHARACTER}", text)


def test_answers_read_as_the_library_reads_them(opened: Opened) -> None:
    answers = []
    for text in TEXTS:
        prompt = opened.prompt(text)
        output = opened.rows(len(prompt) + STEPS).generate(prompt, STEPS)
        answers.append(tuple(output))
        whole = decode(opened.tokenizer, output)
        assert one_replacement(whole) == one_replacement(opened.library.DecodeIds(output))
        stream = Utf8Stream(drops_leading_space=opened.tokenizer.adds_leading_space)
        deltas = [stream.feed(opened.tokenizer.spelling(token)) for token in output]
        assert "".join(deltas) + stream.end() == whole
    assert len(set(answers)) == len(TEXTS)
    assert len(set(sum(answers, ()))) > STEPS, "the answers are not one token over and over"


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_comes_back_as_it_was(opened: Opened, text: str) -> None:
    assert decode(opened.tokenizer, opened.prompt(text)) == text
