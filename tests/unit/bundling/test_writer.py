import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles.tiny_model import (
    TEST_KEY,
    TEST_TRUSTED,
    make_tiny_bundle,
    planned,
    tiny_model,
    tiny_weights,
    tokenizer_file,
)
from safetensors import safe_open

from tie.bundling import writer
from tie.bundling.errors import ImportRefused
from tie.bundling.quantise import Stored
from tie.bundling.weights_file import PlannedTensor, split, write_weights
from tie.catalog import BundleDescription, KvDescription, TokenizerDescription, open_bundle
from tie.catalog.errors import BundleRejected


def entries(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def failing(name: str, shape: tuple[int, ...]) -> PlannedTensor:
    def chunks() -> Iterator[tuple[int, Stored]]:
        yield 0, {"": np.zeros((1, *shape[1:]), np.float32)}
        raise OSError("the source is gone")

    return PlannedTensor(name, shape, "f32", chunks)


def test_a_failed_write_leaves_nothing_and_what_was_there(tmp_path: Path) -> None:
    described = make_tiny_bundle(tmp_path / "bundle", layer_count=1)
    before = (tmp_path / "bundle/manifest.json").read_bytes()
    with pytest.raises(OSError, match="the source is gone"):
        writer.write_bundle(
            tmp_path / "bundle",
            described,
            tokenizer=tokenizer_file("byte_bpe"),
            templates={},
            tensors=[failing("embed.weight", (512, 64))],
            key=TEST_KEY,
            force=True,
        )
    assert entries(tmp_path) == ["bundle"]
    assert (tmp_path / "bundle/manifest.json").read_bytes() == before


def test_a_failed_exchange_puts_the_old_bundle_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tiny_bundle(tmp_path / "bundle", layer_count=1)
    before = (tmp_path / "bundle/manifest.json").read_bytes()
    rename = Path.rename

    def refuse_new(path: Path, target: Path) -> Path:
        if "importing" in path.name:
            raise OSError("no")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse_new)
    with pytest.raises(OSError, match="no"):
        make_tiny_bundle(tmp_path / "bundle", layer_count=1, seed=3, force=True)
    assert entries(tmp_path) == ["bundle"]
    assert (tmp_path / "bundle/manifest.json").read_bytes() == before


def test_a_description_that_no_reader_takes_is_not_written(tmp_path: Path) -> None:
    tokenizer = TokenizerDescription("byte_bpe", 1, False, (512,))
    described = BundleDescription("tiny", "1", tiny_model(), tokenizer, None, KvDescription(16, "f32"))
    with pytest.raises(BundleRejected, match="eos_token_ids"):
        writer.write_bundle(
            tmp_path / "bundle",
            described,
            tokenizer=tokenizer_file("byte_bpe"),
            templates={},
            tensors=[],
            key=None,
        )
    assert entries(tmp_path) == []


@pytest.mark.parametrize("force", [False, True])
def test_what_is_not_a_bundle_is_never_replaced(tmp_path: Path, force: bool) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/mine").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "directory")
    for name, fault in (
        ("file", "file: exists and is not a directory"),
        ("link", "link: exists and is not a directory"),
        ("directory", "directory: is a directory that holds something other than a bundle"),
    ):
        with pytest.raises(ImportRefused, match=fault):
            make_tiny_bundle(tmp_path / name, force=force)
    assert (tmp_path / "directory/mine").read_text() == "mine"


def test_a_bundle_is_replaced_only_when_forced(tmp_path: Path) -> None:
    make_tiny_bundle(tmp_path / "bundle", layer_count=1)
    with pytest.raises(ImportRefused, match="bundle: holds a bundle already; --force replaces it"):
        make_tiny_bundle(tmp_path / "bundle", layer_count=1)
    make_tiny_bundle(tmp_path / "bundle", layer_count=1, name="other", force=True)
    assert entries(tmp_path) == ["bundle"]
    with open_bundle(tmp_path / "bundle", trusted_keys=TEST_TRUSTED) as bundle:
        assert bundle.description.name == "other"


def test_an_empty_directory_and_missing_parents_will_do(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    make_tiny_bundle(tmp_path / "empty", layer_count=1)
    make_tiny_bundle(tmp_path / "a/b/c", layer_count=1)
    for name in ("empty", "a/b/c"):
        with open_bundle(tmp_path / name, trusted_keys=TEST_TRUSTED):
            pass


def test_equal_input_makes_equal_bundles(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_tiny_bundle(tmp_path / name, dtype="int4", seed=9)
    for path in (tmp_path / "a").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "b" / path.relative_to(tmp_path / "a")).read_bytes()


@pytest.mark.parametrize("form", ["f32", "bf16", "int8", "int4", "int4_min"])
def test_tensors_are_aligned_and_other_readers_read_them(tmp_path: Path, form: Any) -> None:
    described = make_tiny_bundle(
        tmp_path / "bundle",
        form=form,
        dtype=form.removesuffix("_min"),
        hidden_size=96,
        intermediate_size=160,
        query_heads=3,
        kv_heads=1,
        head_dim=10,
        vocab_size=515,
        qk_norm=True,
    )
    with open_bundle(tmp_path / "bundle", trusted_keys=TEST_TRUSTED) as bundle:
        for tensor in bundle.weights[0].tensors.values():
            alignment = 4 if len(tensor.shape) == 1 else 32 if tensor.dtype == "F16" else 64
            assert tensor.offset % alignment == 0, tensor
    with safe_open(tmp_path / "bundle/weights/00001.safetensors", "np") as file:
        assert (file.get_tensor("norm.weight") == tiny_weights(described.model, 0)["norm.weight"]).all()


def test_weights_are_split_over_files_but_tensors_are_not(tmp_path: Path) -> None:
    model = tiny_model(layer_count=2)
    tensors = planned(tiny_weights(model, 0), "f32")
    files = split(tensors, 100_000)
    assert [tensor for file in files for tensor in file] == tensors
    assert all(sum(tensor.size_bytes for tensor in file) <= 100_000 or len(file) == 1 for file in files)
    tokenizer = TokenizerDescription("byte_bpe", 1, False, (2,))
    writer.write_bundle(
        tmp_path / "bundle",
        BundleDescription("tiny", "1", model, tokenizer, None, KvDescription(16, "f32")),
        tokenizer=tokenizer_file("byte_bpe"),
        templates={},
        tensors=tensors,
        key=TEST_KEY,
        weights_file_bytes=100_000,
    )
    with open_bundle(tmp_path / "bundle", trusted_keys=TEST_TRUSTED) as bundle:
        assert len(bundle.weight_fds()) == len(files) > 2
        assert [file.path for file in bundle.weights] == [
            f"weights/{n:05}.safetensors" for n in range(1, len(files) + 1)
        ]


def test_progress_counts_every_byte_once(tmp_path: Path) -> None:
    tensors = planned(tiny_weights(tiny_model(), 0), "int4_min")
    counted: list[int] = []
    write_weights(tmp_path / "w", tensors, counted.append)
    assert sum(counted) == sum(tensor.size_bytes for tensor in tensors)


def test_no_fd_is_left(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    make_tiny_bundle(tmp_path / "bundle")
    assert os.listdir("/proc/self/fd") == before
