import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from doubles.gguf_file import tokenizer_values
from doubles.golden import encodings
from doubles.tiny_model import DATA, tokenizer_file
from mistral_common.tokens.tokenizers import sentencepiece as mistral
from tokenizers import Tokenizer

from tie.bundling.assets_check import check_tokenizer
from tie.bundling.bpe_tokenizer import PRE_TOKENIZERS
from tie.bundling.errors import SourceRejected
from tie.bundling.gguf_tokenizer import read_tokenizer
from tie.bundling.source import TokenizerAsset

FILE = "model.gguf"


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """What the header's reader makes of them."""
    return {key: value[-1] for key, value in values.items()}


def byte_bpe(**changes: Any) -> dict[str, Any]:
    values = plain(tokenizer_values())
    return values | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}


def of_sentencepiece(data: bytes, **changes: Any) -> dict[str, Any]:
    """What a converter keeps of a SentencePiece model."""
    model = sentencepiece.SentencePieceProcessor()
    model.LoadFromSerializedProto(data)
    numbers = range(model.GetPieceSize())

    def kind(number: int) -> int:
        if model.IsUnknown(number):
            return 2
        if model.IsControl(number):
            return 3
        return 6 if model.IsByte(number) else 1

    values = {
        "model": "llama",
        "tokens": [model.IdToPiece(number) for number in numbers],
        "scores": [model.GetScore(number) for number in numbers],
        "token_type": [kind(number) for number in numbers],
        "bos_token_id": model.bos_id(),
        "eos_token_id": model.eos_id(),
        "unknown_token_id": model.unk_id(),
    } | changes
    return {f"tokenizer.ggml.{key}": value for key, value in values.items() if value is not None}


TINY = (DATA / "tiny.model").read_bytes()


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({}, "key tokenizer.ggml.model is missing"),
        (byte_bpe(model="bert"), "tokenizer.ggml.model is neither gpt2"),
        (byte_bpe(model=1), "key tokenizer.ggml.model is not a string"),
        (byte_bpe(pre="deepseek-llm"), "names a rule that is not known; known are gpt-2, smollm"),
        (byte_bpe(tokens=[]), "tokens is empty"),
        (byte_bpe(tokens=[1, 2]), "tokens is not a list of strings"),
        (byte_bpe(token_type=[1, 2]), "token_type is not a list of 512 types"),
        (byte_bpe(token_type=[7] * 512), "token_type is not a list of 512 types"),
        (byte_bpe(token_type=[6] * 512), "token 0 is a byte piece"),
        (byte_bpe(tokens=["a"] * 512), "token 1 is empty or given twice"),
        (byte_bpe(merges=["a"]), "merge 0 does not join"),
        (byte_bpe(merges=["t h e"]), "merge 0 does not join"),
        (byte_bpe(merges=["q q"]), "merge 0 does not join"),
        (byte_bpe(merges=3), "merges is not a list of strings"),
        (byte_bpe(eos_token_id=512), "eos_token_id is not a token below 512"),
        (byte_bpe(eos_token_id=True), "eos_token_id is not a token below 512"),
        (byte_bpe(bos_token_id=-1), "bos_token_id is not a token below 512"),
        (byte_bpe(add_bos_token=1), "add_bos_token is not a boolean"),
        (of_sentencepiece(TINY, scores=None), "scores is missing"),
        (of_sentencepiece(TINY, scores=[float("nan")] * 512), "scores is not a list of 512 finite numbers"),
        (of_sentencepiece(TINY, scores=[1.0]), "scores is not a list of 512 finite numbers"),
        (of_sentencepiece(TINY, unknown_token_id=7), "does not mark exactly the unknown token"),
        (of_sentencepiece(TINY, token_type=[1] * 512), "does not mark exactly the unknown token"),
        (of_sentencepiece(TINY, precompiled_charsmap=[1]), "precompiled_charsmap is a normalisation"),
        (of_sentencepiece(TINY, eos_token_id=None), "names no token that ends an answer"),
    ],
)
def test_malformed_metadata_is_refused(values: dict[str, Any], fault: str) -> None:
    with pytest.raises(SourceRejected) as rejected:
        read_tokenizer(FILE, values)
    assert fault in rejected.value.fault


def test_types_must_be_there() -> None:
    values = byte_bpe()
    del values["tokenizer.ggml.token_type"]
    with pytest.raises(SourceRejected, match="token_type is missing: special tokens cannot be told from text"):
        read_tokenizer(FILE, values)


@pytest.mark.parametrize("rule", PRE_TOKENIZERS)
def test_each_rule_cuts_text_as_the_plain_implementation_does(rule: str) -> None:
    asset = read_tokenizer(FILE, byte_bpe(pre=rule))
    values = json.loads(asset.data)
    values["added_tokens"] = []  # the golden encodings take special spellings for text
    tokenizer = Tokenizer.from_str(json.dumps(values))
    cases = [case for case in encodings() if (case["tokenizer"], case["rule"]) == ("tiny", rule)]
    assert len(cases) > 20
    for case in cases:
        assert tokenizer.encode(case["text"]).ids == case["ids"], case["text"]


def test_rules_are_told_apart_by_the_golden_strings() -> None:
    tiny = [case for case in encodings() if case["tokenizer"] == "tiny"]
    by_rule = [[case["ids"] for case in tiny if case["rule"] == rule] for rule in PRE_TOKENIZERS]
    assert len({json.dumps(ids) for ids in by_rule}) == len(PRE_TOKENIZERS)


@pytest.mark.parametrize(
    ("asset", "vocab_size", "fault"),
    [
        (TokenizerAsset("byte_bpe", tokenizer_file("byte_bpe"), 1, False, (2,)), 511, "has token 511"),
        (TokenizerAsset("sentencepiece", TINY, 1, False, (2,)), 511, "has token 511"),
        (TokenizerAsset("byte_bpe", tokenizer_file("byte_bpe"), 1, False, (2, 512)), 512, "names token 512"),
        (TokenizerAsset("byte_bpe", tokenizer_file("byte_bpe"), 512, False, (2,)), 512, "names token 512"),
        (TokenizerAsset("byte_bpe", b"{}", 1, False, (2,)), 512, "is not a tokenizer that"),
        (TokenizerAsset("byte_bpe", b"\xff", 1, False, (2,)), 512, "is not a tokenizer that"),
        (TokenizerAsset("sentencepiece", b"{}", 1, False, (2,)), 512, "is not a SentencePiece model"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(asset: TokenizerAsset, vocab_size: int, fault: str) -> None:
    with pytest.raises(SourceRejected, match=fault):
        check_tokenizer(asset, vocab_size)


def test_a_rebuilt_byte_bpe_is_the_tokenizer_it_was() -> None:
    ours = Tokenizer.from_str(read_tokenizer(FILE, byte_bpe()).data.decode())
    original = Tokenizer.from_str(tokenizer_file("byte_bpe").decode())
    for case in encodings():
        assert ours.encode(case["text"]).ids == original.encode(case["text"]).ids
        assert ours.decode(ours.encode(case["text"]).ids, skip_special_tokens=False) == case["text"]
    assert ours.encode("a<|im_end|>").ids[-1] == 2


def test_unused_pieces_are_left_out() -> None:
    types = byte_bpe()["tokenizer.ggml.token_type"]
    asset = read_tokenizer(FILE, byte_bpe(token_type=[*types[:-1], 5], merges=[]))
    assert Tokenizer.from_str(asset.data.decode()).get_vocab_size() == 511


def test_every_end_that_is_declared_counts_once() -> None:
    asset = read_tokenizer(FILE, byte_bpe(eos_token_id=2, eot_token_id=2, eom_token_id=3))
    assert asset.eos_token_ids == (2, 3)


def mistral_model() -> bytes:
    directory = Path(mistral.__file__).parents[2] / "data"
    return next(path for path in directory.iterdir() if path.name == "tokenizer.model.v1").read_bytes()


@pytest.mark.parametrize("name", ["tiny", "mistral"])
def test_a_rebuilt_sentencepiece_is_the_tokenizer_it_was(name: str) -> None:
    data = TINY if name == "tiny" else mistral_model()
    original = sentencepiece.SentencePieceProcessor()
    original.LoadFromSerializedProto(data)
    asset = read_tokenizer(FILE, of_sentencepiece(data))
    ours = sentencepiece.SentencePieceProcessor()
    ours.LoadFromSerializedProto(asset.data)
    assert ours.GetPieceSize() == original.GetPieceSize()
    assert (ours.bos_id(), ours.eos_id(), ours.unk_id()) == (1, 2, 0)
    assert (asset.kind, asset.bos_token_id, asset.add_bos, asset.eos_token_ids) == ("sentencepiece", 1, True, (2,))
    for case in encodings():
        text = case["text"]
        assert ours.Encode(text) == original.Encode(text), text
        assert ours.Decode(ours.Encode(text)) == original.Decode(original.Encode(text))
    assert all(ours.IsControl(n) == original.IsControl(n) for n in range(ours.GetPieceSize()))


def test_a_model_without_a_dummy_prefix_stays_without() -> None:
    asset = read_tokenizer(FILE, of_sentencepiece(TINY, add_space_prefix=False))
    ours = sentencepiece.SentencePieceProcessor()
    ours.LoadFromSerializedProto(asset.data)
    assert not ours.Encode("token", out_type=str)[0].startswith("▁")
