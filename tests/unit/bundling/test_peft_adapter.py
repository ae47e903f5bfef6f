"""From a PEFT directory into a bundle: no number changes but by the scale, and what does not fit is refused by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from doubles.gguf_file import tiny_gguf
from doubles.hf_directory import make_hf_directory
from doubles.tiny_adapter import Pair, Pairs, make_peft_directory, read_adapter, rounded, their_module, tiny_pairs
from doubles.tiny_model import TEST_KEY, TEST_TRUSTED, tiny_model

from tie.bundling.errors import ImportRefused, SourceRejected
from tie.bundling.importing import Wanted, import_bundle
from tie.bundling.quantise import f32_to_bf16
from tie.catalog import open_bundle
from tie.catalog.safetensors_header import read_header

MODEL = tiny_model(layer_count=2)
PAIRS = tiny_pairs(MODEL, 3)
Q = "layers.0.attn.q"
THEIR_Q = their_module(Q)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_hf_directory(tmp_path_factory.mktemp("source") / "tiny", MODEL)


def imported(source: Path, directory: Path, *peft: tuple[str, Path]) -> dict[str, dict[str, npt.NDArray[np.float32]]]:
    """The tensors of each adapter of the bundle that the import made, in rows."""
    import_bundle(source, directory / "bundle", Wanted(adapters=peft), TEST_KEY)
    with open_bundle(directory / "bundle", trusted_keys=TEST_TRUSTED) as bundle:
        assert bundle.adapter_names == tuple(sorted(name for name, _ in peft))
        return {name: read_adapter(fd) for name, fd in bundle.adapter_fds()}


def refusal(source: Path, directory: Path, peft: Path, error: type[Exception] = SourceRejected) -> str:
    with pytest.raises(error) as rejected:
        import_bundle(source, directory / "bundle", Wanted(adapters=(("a", peft),)), TEST_KEY)
    assert not (directory / "bundle").exists()
    assert [path.name for path in directory.iterdir() if path.name.startswith(".")] == []
    return str(rejected.value)


def extra(name: str, *shape: int) -> dict[str, npt.NDArray[np.generic]]:
    return {name: np.zeros(shape, np.float32)}


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        (extra("base_model.model.lm_head.lora_A.weight", 8, 64), "no part of a LoRA pair for a matrix of a layer"),
        (extra("base_model.model.model.embed_tokens.lora_embedding_A", 8, 512), "no part of a LoRA pair"),
        (extra("base_model.model.model.embed_tokens.weight", 512, 64), "no part of a LoRA pair"),
        (extra("base_model.model.score.weight", 2, 64), "no part of a LoRA pair"),
        (extra(f"{THEIR_Q}.lora_magnitude_vector.weight", 64), "no part of a LoRA pair"),
        (extra(f"{THEIR_Q}.lora_B.bias", 64), "no part of a LoRA pair"),
        (extra(f"{THEIR_Q.replace('self_attn', 'mlp')}.lora_A.weight", 8, 64), "no part of a LoRA pair"),
        (extra(f"{THEIR_Q.replace('self_attn.q', 'mlp.fc1')}.lora_A.weight", 8, 64), "no part of a LoRA pair"),
        (extra(f"{THEIR_Q.replace('layers.0', 'layers.2')}.lora_A.weight", 8, 64), "the model does not have"),
        (extra(f"{THEIR_Q.replace('layers.0', 'layers.00')}.lora_A.weight", 8, 64), "no part of a LoRA pair"),
        (extra(f"{THEIR_Q.replace('.model.layers', '.layers')}.lora_A.weight", 8, 64), "is given twice"),
    ],
)
def test_a_tensor_that_is_no_plain_lora_is_refused_by_name(
    source: Path, tmp_path: Path, more: dict[str, npt.NDArray[np.generic]], fault: str
) -> None:
    message = refusal(source, tmp_path, make_peft_directory(tmp_path / "peft", PAIRS, more=more))
    assert message.startswith("peft/adapter_model.safetensors: tensor ")
    assert fault in message


def changed(change: Callable[[Pair], Pair]) -> Pairs:
    return PAIRS | {Q: change(PAIRS[Q])}


@pytest.mark.parametrize(
    ("pairs", "config", "fault"),
    [
        (changed(lambda pair: Pair(pair.a[:, :-1], pair.b)), {}, "lora_A.weight has shape [8, 63], model and"),
        (changed(lambda pair: Pair(pair.a[:4], pair.b)), {"r": 8}, "lora_A.weight has shape [4, 64], model and"),
        (changed(lambda pair: Pair(pair.a, pair.b[:-1])), {}, "lora_B.weight has shape [63, 8], model and"),
        (changed(lambda pair: Pair(pair.a, pair.b.T)), {}, "lora_B.weight has shape [8, 64], model and"),
        (changed(lambda pair: Pair(pair.a * np.nan, pair.b)), {}, "holds NaN, an infinity or too much"),
        (changed(lambda pair: Pair(pair.a, pair.b * np.inf)), {}, "holds NaN, an infinity or too much"),
        (changed(lambda pair: Pair(pair.a, pair.b + 1e38)), {"lora_alpha": 1e6}, "holds NaN, an infinity or too much"),
        (PAIRS, {"r": 16}, "has shape [8, "),
        (PAIRS, {"rank_pattern": {"layers.0.self_attn.q_proj": 4}}, "has shape [8, 64], model and configuration say"),
        (PAIRS, {"use_dora": True}, "key use_dora is set"),
    ],
)
def test_what_contradicts_model_or_configuration_is_refused(
    source: Path, tmp_path: Path, pairs: Pairs, config: dict[str, Any], fault: str
) -> None:
    assert fault in refusal(source, tmp_path, make_peft_directory(tmp_path / "peft", pairs, **config))


def test_half_a_pair_is_refused(source: Path, tmp_path: Path) -> None:
    more = extra(f"{their_module('layers.0.attn.k')}.lora_B.weight", 32, 8)
    peft = make_peft_directory(tmp_path / "peft", {Q: PAIRS[Q]}, more=more)
    assert "has only half of the pair for layers.0.attn.k" in refusal(source, tmp_path, peft)


@pytest.mark.parametrize("dtype", [np.float64, np.int32])
def test_another_dtype_is_refused(source: Path, tmp_path: Path, dtype: Any) -> None:
    peft = make_peft_directory(tmp_path / "peft", PAIRS, stored=lambda values: values.astype(dtype))
    assert "only F32, F16 and BF16 are imported" in refusal(source, tmp_path, peft)


def test_files_that_are_not_there_or_malformed_are_refused(source: Path, tmp_path: Path) -> None:
    assert refusal(source, tmp_path, tmp_path / "none") == "none/adapter_config.json: is missing"
    peft = make_peft_directory(tmp_path / "peft", PAIRS)
    os.truncate(peft / "adapter_model.safetensors", 4000)
    assert "peft/adapter_model.safetensors: " in refusal(source, tmp_path, peft)
    (peft / "adapter_model.safetensors").rename(peft / "adapter_model.bin")
    assert refusal(source, tmp_path, peft) == "peft/adapter_model.safetensors: is missing"


@pytest.mark.parametrize(
    ("names", "fault"),
    [
        (("a", "a"), "two adapters have the same name"),
        (("A",), "the name of an adapter must match"),
        (("../a",), "the name of an adapter must match"),
        (("",), "the name of an adapter must match"),
        (tuple(f"a{n}" for n in range(65)), "65 adapters are more than the 64 that a bundle holds"),
    ],
)
def test_names_are_refused_before_anything_is_read(tmp_path: Path, names: tuple[str, ...], fault: str) -> None:
    wanted = Wanted(adapters=tuple((name, tmp_path / "none") for name in names))
    with pytest.raises(ImportRefused, match=fault):
        import_bundle(tmp_path / "none", tmp_path / "bundle", wanted, TEST_KEY)


def expect(found: dict[str, npt.NDArray[np.float32]], pairs: Pairs, scale: float = 1.0) -> None:
    assert found.keys() == {stem + side for stem in pairs for side in (".lora_a", ".lora_b")}
    for stem, (a, b) in pairs.items():
        rank = len(a)
        assert found[f"{stem}.lora_a"].shape[0] == found[f"{stem}.lora_b"].shape[1] == -(-rank // 32) * 32
        assert np.array_equal(found[f"{stem}.lora_a"][:rank], a)
        assert np.array_equal(found[f"{stem}.lora_b"][:, :rank], b * np.float32(scale))
        assert not found[f"{stem}.lora_a"][rank:].any()
        assert not found[f"{stem}.lora_b"][:, rank:].any()


@pytest.mark.parametrize("rank", [1, 31, 32, 33, 64])
def test_numbers_arrive_scaled_and_filled_up(source: Path, tmp_path: Path, rank: int) -> None:
    pairs = tiny_pairs(MODEL, rank, rank=rank)
    peft = make_peft_directory(tmp_path / "peft", pairs, alpha=rank * 0.75)
    expect(imported(source, tmp_path, ("a", peft))["a"], pairs, 0.75)


def test_a_rank_of_each_matrix_and_a_root_in_the_scale(source: Path, tmp_path: Path) -> None:
    low, high = (tiny_pairs(MODEL, 1, rank=rank, matrices=[m]) for rank, m in ((4, "attn.q"), (64, "mlp.down")))
    peft = make_peft_directory(
        tmp_path / "peft", low | high, alpha=8, rank_pattern={"mlp.down_proj": 64}, use_rslora=True
    )
    found = imported(source, tmp_path, ("a", peft))["a"]
    expect({name: values for name, values in found.items() if "attn.q" in name}, low, 8 / 4**0.5)
    expect({name: values for name, values in found.items() if "mlp.down" in name}, high, 8 / 64**0.5)


@pytest.mark.parametrize("prefix", ["", "model.", "model.language_model.", "language_model.model."])
def test_the_text_model_may_be_a_part_of_what_was_trained(source: Path, tmp_path: Path, prefix: str) -> None:
    peft = make_peft_directory(tmp_path / "peft", PAIRS, prefix=prefix, alpha_pattern={"layers.0.self_attn.q_proj": 4})
    found = imported(source, tmp_path, ("a", peft))["a"]
    expect({name: values for name, values in found.items() if name.startswith(f"{Q}.")}, {Q: PAIRS[Q]}, 0.5)


@pytest.mark.parametrize(("alpha", "dtype"), [(8, "BF16"), (16, "BF16"), (4, "BF16"), (12, "F32")])
def test_bf16_is_kept_where_the_scale_changes_no_number(source: Path, tmp_path: Path, alpha: float, dtype: str) -> None:
    pairs = rounded(PAIRS)
    peft = make_peft_directory(tmp_path / "peft", pairs, alpha=alpha, stored=f32_to_bf16)
    expect(imported(source, tmp_path, ("a", peft))["a"], pairs, alpha / 8)
    with (tmp_path / "bundle/adapters/a/weights.safetensors").open("rb") as file:
        tensors = read_header("a", file.fileno()).tensors
    assert {tensor.dtype for name, tensor in tensors.items() if name.endswith(".lora_a")} == {"BF16"}
    assert {tensor.dtype for name, tensor in tensors.items() if name.endswith(".lora_b")} == {dtype}


def test_f16_becomes_f32(source: Path, tmp_path: Path) -> None:
    halves = {stem: Pair(*(values.astype(np.float16).astype(np.float32) for values in p)) for stem, p in PAIRS.items()}
    peft = make_peft_directory(tmp_path / "peft", halves, stored=lambda values: values.astype(np.float16))
    expect(imported(source, tmp_path, ("a", peft))["a"], halves)


def test_several_adapters_over_any_kind_of_source_keep_their_rows(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(tiny_gguf(MODEL).to_bytes())  # whose rows of q and k are in another order
    others = tiny_pairs(MODEL, 9, rank=40, matrices=["attn.q", "attn.k"])
    first = make_peft_directory(tmp_path / "first", PAIRS)
    second = make_peft_directory(tmp_path / "second", others)
    found = imported(tmp_path / "tiny.gguf", tmp_path, ("one", first), ("another", second))
    expect(found["one"], PAIRS)
    expect(found["another"], others)


def test_an_import_leaves_no_descriptor(source: Path, tmp_path: Path) -> None:
    peft = make_peft_directory(tmp_path / "peft", PAIRS)
    before = set(os.listdir("/proc/self/fd"))
    imported(source, tmp_path, ("a", peft))
    assert set(os.listdir("/proc/self/fd")) == before
