"""Adapters of a bundle: what is refused of one before anything of it is mapped, and what one changes of the bundle."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from doubles.tiny_adapter import Pairs, add_adapters, planned_pairs, relist, tiny_pairs
from doubles.tiny_model import TEST_TRUSTED, make_tiny_bundle, tiny_model

from tie.bundling.weights_file import write_weights
from tie.catalog import BundleRejected, open_assets, open_bundle
from tie.catalog.adapters import adaptable, check_adapter
from tie.catalog.layout import PARTS, panels_of
from tie.catalog.safetensors_header import Tensor

MODEL = tiny_model(layer_count=1)
FILE = "adapters/a/weights.safetensors"
Q = "layers.0.attn.q"
Tensors = dict[str, Tensor]


def tensor(name: str, dtype: str, *shape: int) -> Tensor:
    return Tensor(name, dtype, shape, 0, 0)


def pair(stem: str = Q, rank: int = 32, form: str = "f32") -> Tensors:
    rows, k = adaptable(MODEL)[stem]
    part = PARTS["f32" if form == "f32" else "bf16"][0]
    shapes = {f"{stem}.lora_a": (rank, k), f"{stem}.lora_b": (rows, rank)}
    return {name: tensor(name, part.dtype, *part.shape(shape)) for name, shape in shapes.items()}


def refused(tensors: Tensors) -> str:
    with pytest.raises(BundleRejected) as rejected:
        check_adapter(MODEL, tensors, FILE)
    assert rejected.value.file == FILE
    return rejected.value.fault


def renamed(old: str, new: str) -> Tensors:
    return {name.replace(old, new): found for name, found in pair().items()}


@pytest.mark.parametrize(
    "tensors",
    [
        renamed("layers.0", "layers.1"),
        renamed("layers.0.attn.q", "embed"),
        renamed("layers.0.attn.q", "lm_head"),
        renamed("attn.q", "attn_norm"),
        renamed("attn.q", "attn.q.weight"),
        renamed(".lora_a", ".lora_c"),
        pair() | {f"{Q}.weight": tensor(f"{Q}.weight", "F32", 4, 64, 16)},
        pair() | {"loose": tensor("loose", "F32", 1)},
    ],
)
def test_a_tensor_that_bends_no_matrix_is_refused(tensors: Tensors) -> None:
    fault = refused(tensors)
    assert "bends no matrix of the model" in fault or "lora_a is missing" in fault


def test_an_adapter_of_nothing_is_refused() -> None:
    assert refused({}) == "bends no matrix of the model"


@pytest.mark.parametrize("side", [".lora_a", ".lora_b"])
def test_half_a_pair_is_refused(side: str) -> None:
    tensors = pair()
    del tensors[Q + side]
    assert refused(tensors) == f"tensor {Q}{side} is missing"


@pytest.mark.parametrize("rank", [0, 16, 48, 513, 544, 2**40])
def test_a_rank_that_is_not_whole_blocks_within_the_limit_is_refused(rank: int) -> None:
    tensors = pair()
    tensors[f"{Q}.lora_a"] = tensor(f"{Q}.lora_a", "F32", panels_of(rank), 64, 16)
    assert "not a multiple of 32 up to 512" in refused(tensors)


@pytest.mark.parametrize(
    ("side", "dtype", "shape"),
    [
        (".lora_a", "F32", (2, 63, 16)),
        (".lora_a", "F32", (2, 64, 15)),
        (".lora_a", "F32", (2, 64 * 16)),
        (".lora_a", "F32", (4, 64, 16)),  # a rank that B does not have
        (".lora_b", "F32", (5, 32, 16)),
        (".lora_b", "F32", (4, 33, 16)),
        (".lora_b", "F32", (4, 16, 16, 2)),
    ],
)
def test_another_shape_is_refused(side: str, dtype: str, shape: tuple[int, ...]) -> None:
    assert "has shape" in refused(pair() | {Q + side: tensor(Q + side, dtype, *shape)})


@pytest.mark.parametrize("dtype", ["F16", "I8", "U8", "F64"])
def test_another_dtype_is_refused(dtype: str) -> None:
    name = f"{Q}.lora_b"
    assert f"tensor {name} is {dtype}, not BF16" in refused(pair() | {name: tensor(name, dtype, 4, 32, 16)})


def test_quantised_adapters_are_refused() -> None:
    tensors = {f"{name}.q": found for name, found in pair().items()}
    assert "bends no matrix" in refused(tensors)


def test_ranks_and_dtypes_may_differ_between_matrices() -> None:
    tensors = pair() | pair("layers.0.mlp.down", 512, "bf16") | pair("layers.0.attn.k", 96)
    tensors |= {f"{Q}.lora_b": pair(form="bf16")[f"{Q}.lora_b"]}
    assert check_adapter(MODEL, tensors, FILE) == {Q: 32, "layers.0.attn.k": 96, "layers.0.mlp.down": 512}


def test_every_matrix_of_a_layer_and_no_other_can_be_bent() -> None:
    stems = [f"attn.{name}" for name in "qkvo"] + [f"mlp.{name}" for name in ("gate", "up", "down")]
    assert list(adaptable(tiny_model())) == [f"layers.{layer}.{stem}" for layer in range(2) for stem in stems]
    assert adaptable(tiny_model())["layers.1.mlp.down"] == (64, 128)


PAIRS = tiny_pairs(MODEL, 1)
OTHERS = tiny_pairs(MODEL, 2, rank=40)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "bundle"
    make_tiny_bundle(path, layer_count=1)
    add_adapters(path, {"b": PAIRS, "a": OTHERS})
    return path


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "bundle"))


def test_an_altered_adapter_is_refused(bundle: Path) -> None:
    data = bytearray((bundle / FILE).read_bytes())
    data[-1] ^= 1
    (bundle / FILE).write_bytes(data)
    for into_memory in (False, True):
        with pytest.raises(BundleRejected, match=f"{FILE}: does not have the SHA-256"):
            open_bundle(bundle, trusted_keys=TEST_TRUSTED, into_memory=into_memory)


@pytest.mark.parametrize("path", ["adapters/c/weights.safetensors", "adapters/a/notes", "adapters/c"])
def test_what_the_manifest_does_not_list_is_refused(bundle: Path, path: str) -> None:
    (bundle / path).parent.mkdir(exist_ok=True)
    (bundle / path).write_bytes((bundle / FILE).read_bytes())
    with pytest.raises(BundleRejected, match="is not listed in the manifest"):
        open_bundle(bundle, trusted_keys=TEST_TRUSTED)


def test_an_adapter_behind_a_symlink_is_refused(bundle: Path, tmp_path: Path) -> None:
    (bundle / "adapters/a").rename(tmp_path / "elsewhere")
    (bundle / "adapters/a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleRejected, match="cannot be opened"):
        open_bundle(bundle, trusted_keys=TEST_TRUSTED)


@pytest.mark.parametrize(
    ("write", "fault"),
    [
        (lambda path: path.write_bytes(b""), "too short for a safetensors file"),
        (lambda path: write(path, tiny_pairs(tiny_model(layer_count=2), 1)), "layers.1.attn.k.lora_a bends no matrix"),
        (lambda path: write(path, tiny_pairs(tiny_model(layer_count=1, hidden_size=96), 1)), "has shape"),
    ],
)
def test_a_signed_adapter_still_must_fit_the_model(bundle: Path, write: Callable[[Path], None], fault: str) -> None:
    (bundle / FILE).unlink()
    write(bundle / FILE)
    relist(bundle, FILE)
    with pytest.raises(BundleRejected, match=fault) as rejected:
        open_bundle(bundle, trusted_keys=TEST_TRUSTED)
    assert rejected.value.file == FILE


def write(path: Path, pairs: Pairs) -> None:
    write_weights(path, planned_pairs(pairs), lambda count: None)


@pytest.mark.parametrize("into_memory", [False, True])
def test_adapters_come_by_name_and_in_order(bundle: Path, into_memory: bool) -> None:
    with open_bundle(bundle, trusted_keys=TEST_TRUSTED, into_memory=into_memory) as opened:
        assert opened.adapter_names == ("a", "b") == tuple(opened.adapters)
        assert set(opened.adapters["a"].ranks.values()) == {64}
        assert set(opened.adapters["b"].ranks.values()) == {32}
        for (name, fd), file in zip(opened.adapter_fds(), opened.adapters.values(), strict=True):
            data = (bundle / file.path).read_bytes()
            assert (file.path, file.size_bytes) == (f"adapters/{name}/weights.safetensors", len(data))
            assert os.pread(fd, len(data) + 1, 0) == data
            if into_memory:
                assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE


def test_a_request_process_knows_the_names_without_opening_an_adapter(bundle: Path) -> None:
    shutil.rmtree(bundle / "adapters")
    with open_assets(bundle, trusted_keys=TEST_TRUSTED) as assets:
        assert assets.adapter_names == ("a", "b")


def test_a_kv_identity_knows_the_request_s_adapter_and_no_other(bundle: Path, tmp_path: Path) -> None:
    make_tiny_bundle(tmp_path / "plain", layer_count=1)
    with open_assets(tmp_path / "plain", trusted_keys=TEST_TRUSTED) as plain:
        base = plain.kv_identity
        with pytest.raises(BundleRejected, match="has none of the 6-character name asked for"):
            plain.adapter_kv_identity("secret")
    with open_assets(bundle, trusted_keys=TEST_TRUSTED) as assets:
        assert assets.kv_identity == base
        of = {name: assets.adapter_kv_identity(name) for name in assets.adapter_names}
    assert len({base, *of.values()}) == 3
    add_adapters(bundle, {"another": PAIRS})
    with open_assets(bundle, trusted_keys=TEST_TRUSTED) as assets:
        assert {name: assets.adapter_kv_identity(name) for name in ("a", "b")} == of
        assert assets.adapter_kv_identity("another") == of["b"], "the same weights under another name"
