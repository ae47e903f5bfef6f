from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from doubles.tiny_model import TEST_KEY, TEST_TRUSTED

from tie.catalog import signature
from tie.catalog.errors import BundleRejected, CatalogError

MANIFEST = b"the bytes of a manifest"
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))


def test_a_signature_by_a_stranger_is_refused() -> None:
    with pytest.raises(BundleRejected, match=r"manifest\.sig: was made by none of the 1 trusted keys"):
        signature.verify(MANIFEST, STRANGER.sign(signature.DOMAIN + MANIFEST), TEST_TRUSTED)


def test_a_signature_over_other_bytes_is_refused() -> None:
    with pytest.raises(BundleRejected, match="was made by none"):
        signature.verify(MANIFEST + b" ", TEST_KEY.sign(MANIFEST), TEST_TRUSTED)


def test_a_signature_made_for_another_purpose_is_refused() -> None:
    with pytest.raises(BundleRejected, match="was made by none"):
        signature.verify(MANIFEST, TEST_KEY.private.sign(MANIFEST), TEST_TRUSTED)


@pytest.mark.parametrize("length", [0, 63, 65])
def test_a_signature_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(BundleRejected, match=f"is {length} bytes, not 64"):
        signature.verify(MANIFEST, bytes(length), TEST_TRUSTED)


def test_nothing_is_verified_where_nobody_is_trusted() -> None:
    with pytest.raises(BundleRejected, match="no key is trusted"):
        signature.verify(MANIFEST, TEST_KEY.sign(MANIFEST), ())


def test_the_key_that_signed_is_named() -> None:
    others = STRANGER.public_key().public_bytes_raw()
    assert signature.verify(MANIFEST, TEST_KEY.sign(MANIFEST), (others, *TEST_TRUSTED)) == TEST_KEY.public


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ab\n", "line 1 is not a key of 64 hex digits"),
        ("# mine\n\n" + "zz" * 32, "line 3 is not a key of 64 hex digits"),
        ("ab" * 32 + " ab", "line 1 is not a key"),
        ("\n".join(f"{n:064x}" for n in range(65)), "lists 65 keys, more than 64"),
        ("#" * 70_000, "is longer than 65536 bytes"),
    ],
)
def test_a_malformed_list_of_keys_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    path = tmp_path / "trusted"
    path.write_text(text)
    with pytest.raises(CatalogError, match=f"trusted: {fault}"):
        signature.load_trusted_keys(path)


def test_a_list_that_is_not_there_is_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="trusted: cannot be read"):
        signature.load_trusted_keys(tmp_path / "trusted")


def test_a_list_of_keys_is_read_once_each(tmp_path: Path) -> None:
    path = tmp_path / "trusted"
    path.write_text(f"# ours\n{'AB' * 32}  # old\n\n{'00' * 32}\n{'ab' * 32}\n")
    assert signature.load_trusted_keys(path) == (b"\xab" * 32, bytes(32))


def test_keys_are_kept_where_the_user_configures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert signature.default_trusted_keys_path() == tmp_path / "tie" / "trusted-bundle-keys"
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert signature.default_trusted_keys_path() == tmp_path / ".config" / "tie" / "trusted-bundle-keys"
