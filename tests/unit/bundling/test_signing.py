from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, NoEncryption, PrivateFormat
from doubles.tiny_model import TEST_KEY

from tie.bundling.errors import ImportRefused
from tie.bundling.signing import create_key, development_key, load_key
from tie.catalog.signature import load_trusted_keys, verify


def written(path: Path, data: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(data)
    path.chmod(mode)
    return path


def pem(*, password: bytes | None = None) -> bytes:
    encryption = BestAvailableEncryption(password) if password else NoEncryption()
    return TEST_KEY.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "key.pem", pem(), mode)
    with pytest.raises(ImportRefused, match=f"key.pem: signing key has mode {mode:04o}, others may read it"):
        load_key(path)


def test_what_is_no_key_is_refused_and_not_repeated(tmp_path: Path) -> None:
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for data, fault in (
        (b"", "is not an unencrypted signing key"),
        (b"secret words", "is not an unencrypted signing key"),
        (pem(password=b"x"), "is not an unencrypted signing key"),
        (other, "is not an Ed25519 key"),
        (b"x" * 20_000, "is not a signing key"),
    ):
        with pytest.raises(ImportRefused, match=f"key.pem: {fault}") as refused:
            load_key(written(tmp_path / "key.pem", data))
        assert "secret" not in str(refused.value)
    with pytest.raises(ImportRefused, match=r"none\.pem: signing key cannot be read"):
        load_key(tmp_path / "none.pem")
    with pytest.raises(ImportRefused, match="signing key"):
        load_key(tmp_path)


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    create_key(tmp_path / "key.pem")
    with pytest.raises(ImportRefused, match=r"key\.pem: signing key cannot be created"):
        create_key(tmp_path / "key.pem")


def test_a_key_does_not_show_itself() -> None:
    assert repr(TEST_KEY) == "SigningKey(test.pem)"


def test_the_development_key_is_made_once_for_its_owner_only_and_trusted(tmp_path: Path) -> None:
    first = development_key(tmp_path / "tie")
    again = development_key(tmp_path / "tie")
    assert (first.is_new, again.is_new) == (True, False)
    assert first.public == again.public
    assert (tmp_path / "tie/bundle-signing.pem").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "tie").stat().st_mode & 0o777 == 0o700
    trusted = load_trusted_keys(tmp_path / "tie/trusted-bundle-keys")
    assert trusted == (first.public,)
    assert verify(b"manifest", again.sign(b"manifest"), trusted) == first.public


def test_keys_that_are_trusted_already_stay(tmp_path: Path) -> None:
    (tmp_path / "trusted-bundle-keys").write_text("# theirs\n" + "ab" * 32)
    key = development_key(tmp_path)
    assert load_trusted_keys(tmp_path / "trusted-bundle-keys") == (b"\xab" * 32, key.public)
