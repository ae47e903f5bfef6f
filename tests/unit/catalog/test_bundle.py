import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from doubles.tiny_model import CHAT_TEMPLATE, TEST_KEY, TEST_TRUSTED, make_tiny_bundle, tokenizer_file

from tie.bundling.signing import SigningKey
from tie.catalog import BundleRejected, open_assets, open_bundle
from tie.catalog.bundle import open_unvouched

WEIGHTS = "weights/00001.safetensors"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    make_tiny_bundle(tmp_path / "bundle", dtype="int8", layer_count=1)
    return tmp_path / "bundle"


@pytest.fixture(autouse=True)
def no_fd_is_left() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) == before


def refused(path: Path, file: str, fault: str) -> None:
    with pytest.raises(BundleRejected) as rejected:
        open_bundle(path, trusted_keys=TEST_TRUSTED)
    assert rejected.value.file == file
    assert fault in rejected.value.fault


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def resign(path: Path, change: Callable[[dict[str, dict[str, object]]], None]) -> None:
    """What a publisher with the key might do, by mistake or not."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest["files"])
    data = json.dumps(manifest).encode()
    (path / "manifest.json").write_bytes(data)
    (path / "manifest.sig").write_bytes(TEST_KEY.sign(data))


def test_one_flipped_bit_in_any_file_is_refused(bundle: Path) -> None:
    for file in [WEIGHTS, "bundle.toml", "tokenizer.json", "templates/chat.jinja"]:
        flip(bundle / file, (bundle / file).stat().st_size // 2)
        refused(bundle, file, "does not have the SHA-256 that the manifest says")
        flip(bundle / file, (bundle / file).stat().st_size // 2)
    with open_bundle(bundle, trusted_keys=TEST_TRUSTED):
        pass


@pytest.mark.parametrize("file", [WEIGHTS, "bundle.toml", "tokenizer.json", "templates/chat.jinja"])
def test_a_file_of_another_size_is_refused(bundle: Path, file: str) -> None:
    size = (bundle / file).stat().st_size
    os.truncate(bundle / file, size - 1)
    refused(bundle, file, f"is {size - 1} bytes, the manifest says {size}")
    os.truncate(bundle / file, size + 1)
    refused(bundle, file, f"is {size + 1} bytes, the manifest says {size}")


@pytest.mark.parametrize("file", [WEIGHTS, "bundle.toml", "tokenizer.json", "manifest.json", "manifest.sig"])
def test_a_missing_file_is_refused(bundle: Path, file: str) -> None:
    (bundle / file).unlink()
    refused(bundle, file, "is missing")


@pytest.mark.parametrize(
    "file", ["more", "weights/00002.safetensors", "templates/other.jinja", "system_prompts/a.toml"]
)
def test_a_file_that_the_manifest_does_not_list_is_refused(bundle: Path, file: str) -> None:
    (bundle / file).parent.mkdir(exist_ok=True)
    (bundle / file).write_bytes(b"")
    refused(bundle, "system_prompts" if "system" in file else file, "is not listed in the manifest")


def test_an_empty_directory_is_refused(bundle: Path) -> None:
    (bundle / "empty").mkdir()
    refused(bundle, "empty", "is not listed in the manifest")


def test_the_name_of_a_stranger_is_not_repeated_raw(bundle: Path) -> None:
    (bundle / "a\x1b[31mb").write_bytes(b"")
    refused(bundle, "a file with a name of 7 characters", "is not listed in the manifest")


def test_a_symlink_is_refused_even_to_the_right_bytes(bundle: Path, tmp_path: Path) -> None:
    (bundle / "tokenizer.json").rename(tmp_path / "elsewhere")
    (bundle / "tokenizer.json").symlink_to(tmp_path / "elsewhere")
    refused(bundle, "tokenizer.json", "cannot be opened")


def test_a_directory_behind_a_symlink_is_refused(bundle: Path, tmp_path: Path) -> None:
    (bundle / "weights").rename(tmp_path / "elsewhere")
    (bundle / "weights").symlink_to(tmp_path / "elsewhere")
    refused(bundle, "weights", "cannot be opened")


def test_a_missing_directory_is_refused(bundle: Path) -> None:
    (bundle / "templates/chat.jinja").unlink()
    (bundle / "templates").rmdir()
    refused(bundle, "templates", "is missing")


def test_a_pipe_in_the_place_of_a_file_is_refused_without_waiting(bundle: Path) -> None:
    for file in ("tokenizer.json", "manifest.json"):
        (bundle / file).unlink()
        os.mkfifo(bundle / file)
        refused(bundle, file, "is not a regular file")


def test_a_directory_in_the_place_of_a_file_is_refused(bundle: Path) -> None:
    (bundle / "manifest.sig").unlink()
    (bundle / "manifest.sig").mkdir()
    refused(bundle, "manifest.sig", "is not a regular file")


def test_a_bundle_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "nothing", "nothing", "is missing")
    (tmp_path / "file").write_bytes(b"")
    refused(tmp_path / "file", "file", "cannot be opened")


def test_an_altered_manifest_is_refused_before_it_is_parsed(bundle: Path) -> None:
    (bundle / "manifest.json").write_bytes(b"{")
    refused(bundle, "manifest.sig", "was made by none of the 1 trusted keys")


def test_a_stranger_s_bundle_is_refused_even_where_unsigned_ones_are_allowed(tmp_path: Path) -> None:
    stranger = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes(32)), tmp_path / "key")
    make_tiny_bundle(tmp_path / "bundle", key=stranger)
    with pytest.raises(BundleRejected, match="was made by none"):
        open_bundle(tmp_path / "bundle", trusted_keys=TEST_TRUSTED, allow_unsigned=True)


def test_an_unsigned_bundle_needs_the_switch(tmp_path: Path) -> None:
    make_tiny_bundle(tmp_path / "bundle", key=None)
    refused(tmp_path / "bundle", "manifest.sig", "is missing")
    with open_bundle(tmp_path / "bundle", trusted_keys=(), allow_unsigned=True) as opened:
        assert opened.signed_by is None


def test_a_signed_manifest_still_must_describe_the_model(bundle: Path) -> None:
    def without_tokenizer(files: dict[str, dict[str, object]]) -> None:
        del files["tokenizer.json"]

    resign(bundle, without_tokenizer)
    refused(bundle, "tokenizer.json", "is missing from the manifest")


def test_a_second_tokenizer_is_refused(bundle: Path) -> None:
    resign(bundle, lambda files: files.update({"tokenizer.model": files["tokenizer.json"]}))
    refused(bundle, "tokenizer.model", "is a second tokenizer")


def test_a_tensor_in_two_files_is_refused(bundle: Path) -> None:
    (bundle / "weights/2.safetensors").write_bytes((bundle / WEIGHTS).read_bytes())
    resign(bundle, lambda files: files.update({"weights/2.safetensors": files[WEIGHTS]}))
    with pytest.raises(BundleRejected, match="is in another weights file too"):
        open_bundle(bundle, trusted_keys=TEST_TRUSTED)


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    make_tiny_bundle(tmp_path / "one", layer_count=1)
    make_tiny_bundle(tmp_path / "two", layer_count=2)
    (tmp_path / "one/bundle.toml").write_bytes((tmp_path / "two/bundle.toml").read_bytes())
    two = json.loads((tmp_path / "two/manifest.json").read_text())["files"]
    resign(tmp_path / "one", lambda files: files.update({"bundle.toml": two["bundle.toml"]}))
    refused(tmp_path / "one", "weights", "tensor layers.1.attn_norm.weight is missing")


def test_assets_are_verified_when_they_are_read(bundle: Path) -> None:
    with open_assets(bundle, trusted_keys=TEST_TRUSTED) as assets:
        flip(bundle / "tokenizer.json", 10)
        with pytest.raises(BundleRejected, match=r"tokenizer\.json: does not have the SHA-256"):
            assets.read_tokenizer()
        flip(bundle / "tokenizer.json", 10)
        assert assets.read_tokenizer() == tokenizer_file("byte_bpe")
        assert assets.template("chat") == CHAT_TEMPLATE
        with pytest.raises(BundleRejected, match="has none of the 14-character id asked for"):
            assets.template("../bundle.toml")


def test_assets_leave_the_weights_alone(bundle: Path) -> None:
    (bundle / WEIGHTS).unlink()
    with open_assets(bundle, trusted_keys=TEST_TRUSTED) as assets:
        assert assets.read_tokenizer()


def test_assets_of_an_altered_description_are_refused(bundle: Path) -> None:
    flip(bundle / "bundle.toml", 20)
    with pytest.raises(BundleRejected, match=r"bundle\.toml: does not have the SHA-256"):
        open_assets(bundle, trusted_keys=TEST_TRUSTED)


def test_both_ways_of_opening_agree_on_identities(bundle: Path) -> None:
    with (
        open_bundle(bundle, trusted_keys=TEST_TRUSTED) as whole,
        open_assets(bundle, trusted_keys=TEST_TRUSTED) as part,
    ):
        assert (whole.identity, whole.kv_identity) == (part.identity, part.kv_identity)
        assert whole.description == part.description
        assert whole.signed_by == part.signed_by == TEST_KEY.public
        assert len(whole.identity) == len(whole.kv_identity) == 32


def test_the_kv_identity_outlives_a_template_but_not_weights(tmp_path: Path) -> None:
    identities = []
    for name, changes in (
        ("a", {}),
        ("b", {"chat_template": "{{ messages }}"}),
        ("c", {"release": "2"}),
        ("d", {"seed": 1}),
        ("e", {"tokenizer": "sentencepiece"}),
        ("f", {"norm_eps": 1e-6}),
    ):
        make_tiny_bundle(tmp_path / name, **changes)  # type: ignore[arg-type]
        with open_assets(tmp_path / name, trusted_keys=TEST_TRUSTED) as assets:
            identities.append((assets.identity, assets.kv_identity))
    assert len({identity for identity, _ in identities}) == 6
    kv = [kv for _, kv in identities]
    assert kv[0] == kv[1] == kv[2]
    assert len(set(kv)) == 4


def test_a_file_exchanged_after_opening_does_not_reach_the_reader(bundle: Path) -> None:
    with open_bundle(bundle, trusted_keys=TEST_TRUSTED) as opened:
        verified = (bundle / WEIGHTS).read_bytes()
        (bundle / WEIGHTS).unlink()
        (bundle / WEIGHTS).write_bytes(b"another")
        assert os.pread(opened.weight_fds()[0], len(verified), 0) == verified


def test_weights_in_memory_are_sealed_copies(bundle: Path) -> None:
    with open_bundle(bundle, trusted_keys=TEST_TRUSTED, into_memory=True) as opened:
        (fd,) = opened.weight_fds()
        (bundle / WEIGHTS).write_bytes(b"another")
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_WRITE
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 0)
        assert opened.forms["embed.weight"] == "int8"


def test_altered_weights_do_not_get_into_memory(bundle: Path) -> None:
    flip(bundle / WEIGHTS, -1)
    with pytest.raises(BundleRejected, match=f"{WEIGHTS}: does not have the SHA-256"):
        open_bundle(bundle, trusted_keys=TEST_TRUSTED, into_memory=True)


def test_showing_a_bundle_verifies_its_files_too(tmp_path: Path) -> None:
    make_tiny_bundle(tmp_path / "bundle", key=None)
    with open_unvouched(tmp_path / "bundle") as opened:
        assert opened.signed_by is None
    flip(tmp_path / "bundle" / WEIGHTS, -1)
    with pytest.raises(BundleRejected, match="does not have the SHA-256"):
        open_unvouched(tmp_path / "bundle")


def test_a_request_process_imports_the_catalog_without_numpy() -> None:
    heavy = {"numpy", "gguf", "safetensors", "cryptography", "tokenizers"}
    code = f"import sys, tie.catalog; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout.strip() == "[]"
