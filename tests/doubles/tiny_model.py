"""Real bundles of random weights, well under a megabyte, for every test that needs a model but not a clever one.

Weights depend on the seed and on nothing else: they are made from raw words of PCG64, whose stream numpy keeps, so that
golden files hold only what a model computed. The tokenizers are small but whole: all 256 bytes, merges, special tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from tie.bundling.quantise import Stored, encode
from tie.bundling.signing import SigningKey
from tie.bundling.weights_file import PlannedTensor
from tie.bundling.writer import write_bundle
from tie.catalog.attention import uniform
from tie.catalog.description import (
    LAYOUT,
    BundleDescription,
    KvDescription,
    KvDtype,
    ModelDescription,
    TokenizerDescription,
    TokenizerKind,
    WeightDtype,
)
from tie.catalog.layout import BLOCK, Form, expected_tensors
from tie.catalog.rope import Rope

DATA: Final = Path(__file__).resolve().parents[1] / "data"
BPE_SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|tool|>")
BPE_VOCAB_SIZE: Final = 512
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
# Its private half is in this file for all to read: only tests may trust it.
TEST_KEY: Final = SigningKey(
    Ed25519PrivateKey.from_private_bytes(b"tie tests: a key that all know.."), Path("test.pem")
)
TEST_TRUSTED: Final = (TEST_KEY.public,)

_MORE: Final = re.compile(r"(q|k|post)_norm\.weight|(o|gate|up|down)\.bias")

Weights = dict[str, npt.NDArray[np.float32]]


def tiny_model(*, rope: Rope | None = None, window: int | None = None, **overrides: Any) -> ModelDescription:
    """Two layers of grouped-query attention; any field of `ModelDescription` may be given.

    `rope` and `window` are of the one kind of attention that there is unless `attention` is given.
    """
    model = ModelDescription(
        architecture="llama",
        layout=LAYOUT,
        dtype="f32",
        hidden_size=64,
        intermediate_size=128,
        layer_count=2,
        query_heads=4,
        kv_heads=2,
        head_dim=16,
        vocab_size=BPE_VOCAB_SIZE,
        context_length=512,
        norm_eps=1e-5,
        tied_embeddings=False,
        attention=uniform(rope or Rope(10_000.0, overrides.get("head_dim", 16)), window),
    )
    return replace(model, **overrides)


def tiny_weights(model: ModelDescription, seed: int) -> Weights:
    """By our names; matrices keep the size of what passes through them, so that logits neither vanish nor explode."""
    weights: Weights = {}
    plain = count()
    for expected in expected_tensors(model):
        # What a Llama or Qwen2 has is drawn by its place among that alone, so that golden files outlive new vectors.
        is_plain = _MORE.search(expected.name) is None
        number = seed * 100_003 + next(plain) if is_plain else crc32(f"{seed}/{expected.name}".encode())
        noise = _noise(number, expected.shape)
        if expected.name.endswith("norm.weight"):
            weights[expected.name] = np.float32(1) + np.float32(0.1) * noise
        elif expected.name == "embed.weight" or not expected.is_matrix:
            weights[expected.name] = noise
        else:
            weights[expected.name] = noise * np.float32(1.5 / expected.shape[1] ** 0.5)
    return weights


def make_tiny_bundle(
    destination: Path,
    *,
    seed: int = 0,
    tokenizer: TokenizerKind = "byte_bpe",
    dtype: WeightDtype = "f32",
    form: Form | None = None,
    kv_dtype: KvDtype = "f32",
    block_size_tokens: int = 16,
    name: str = "tiny",
    release: str = "1",
    chat_template: str | None = CHAT_TEMPLATE,
    key: SigningKey | None = TEST_KEY,
    force: bool = False,
    **model_overrides: Any,
) -> BundleDescription:
    """Writes a bundle signed by `TEST_KEY` (open it with `TEST_TRUSTED`); `form` picks int4 with a minimum."""
    model = tiny_model(dtype=dtype, **model_overrides)
    described = BundleDescription(
        name,
        release,
        model,
        _TOKENIZERS[tokenizer],
        "chat" if chat_template is not None else None,
        KvDescription(block_size_tokens, kv_dtype),
    )
    write_bundle(
        destination,
        described,
        tokenizer=tokenizer_file(tokenizer),
        templates={"chat": chat_template} if chat_template is not None else {},
        tensors=planned(tiny_weights(model, seed), form or dtype),
        key=key,
        force=force,
    )
    return described


def planned(weights: Weights, form: Form) -> list[PlannedTensor]:
    """Matrices in `form` (bf16 where their rows have no whole blocks), vectors in f32."""
    return [_planned(name, values, form) for name, values in weights.items()]


def tokenizer_file(kind: TokenizerKind) -> bytes:
    return _byte_bpe() if kind == "byte_bpe" else (DATA / "tiny.model").read_bytes()


_TOKENIZERS: Final = {
    "byte_bpe": TokenizerDescription("byte_bpe", bos_token_id=1, add_bos=False, eos_token_ids=(2, 0)),
    "sentencepiece": TokenizerDescription("sentencepiece", bos_token_id=1, add_bos=True, eos_token_ids=(2, 4)),
}


@cache
def _byte_bpe() -> bytes:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=BPE_VOCAB_SIZE,
        special_tokens=list(BPE_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((DATA / "corpus.txt").read_text().splitlines(keepends=True), trainer)
    assert tokenizer.get_vocab_size() == BPE_VOCAB_SIZE, "the corpus is long enough"
    return tokenizer.to_str().encode("utf-8")


def _noise(seed: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Uniform, mean 0, variance 1."""
    count = int(np.prod(shape))
    words = np.random.PCG64(seed).random_raw(count) >> np.uint64(40)
    values = words.astype(np.float32) * np.float32(2**-23) - np.float32(1)
    return (values * np.float32(3**0.5)).reshape(shape)


def _planned(name: str, values: npt.NDArray[np.float32], form: Form) -> PlannedTensor:
    if values.ndim == 1:
        form = "f32"
    elif form not in ("f32", "bf16") and values.shape[1] % BLOCK:
        form = "bf16"

    def chunks() -> Iterator[tuple[int, Stored]]:
        rows = values.reshape(-1, values.shape[-1])
        yield 0, encode(rows, form)

    return PlannedTensor(name, values.shape, form, chunks)
