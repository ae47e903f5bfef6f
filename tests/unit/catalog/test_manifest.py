import hashlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tie.catalog.errors import BundleRejected
from tie.catalog.manifest import (
    MAX_BYTES,
    MAX_FILES,
    MAX_SMALL_FILE_BYTES,
    FileEntry,
    parse_manifest,
    render_manifest,
)

ENTRY = {"sha256": "ab" * 32, "size": 3}


def manifest(files: Any, **more: Any) -> bytes:
    return json.dumps({"format": 1, "files": files, **more}).encode()


@pytest.mark.parametrize(
    "path",
    [
        "../bundle.toml",
        "weights/../bundle.toml",
        "weights/..",
        "/etc/passwd",
        "./bundle.toml",
        "weights//a.safetensors",
        "weights/",
        "",
        ".",
        "..",
        "weights\\a.safetensors",
        "weights/a\x00.safetensors",
        "weights/a\n.safetensors",
        "weights/ä.safetensors",
        "weights/.hidden.safetensors",
        "weights/-a.safetensors",
        "weights/" + "a" * 200 + ".safetensors",
        "a/" * 300 + "b",
    ],
)
def test_a_path_that_is_not_plain_is_refused(path: str) -> None:
    with pytest.raises(BundleRejected, match="not plain and relative"):
        parse_manifest(manifest({path: ENTRY}))


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("bundle.txt", "is not a file that a bundle holds"),
        ("manifest.json", "is not a file that a bundle holds"),
        ("manifest.sig", "is not a file that a bundle holds"),
        ("weights/a.bin", "is not a file that a bundle holds"),
        ("weights/deeper/a.safetensors", "is not a file that a bundle holds"),
        ("templates/Chat.jinja", "is not a file that a bundle holds"),
        ("system_prompts/a.toml", "is of a kind that this version does not implement"),
        ("adapters/a/adapter.safetensors", "is not a file that a bundle holds"),
        ("adapters/weights.safetensors", "is not a file that a bundle holds"),
        ("adapters/A/weights.safetensors", "is not a file that a bundle holds"),
        ("adapters/a/b/weights.safetensors", "is not a file that a bundle holds"),
        (f"adapters/{'a' * 65}/weights.safetensors", "is not a file that a bundle holds"),
        ("grammars/a.lark", "is of a kind that this version does not implement"),
    ],
)
def test_a_file_that_has_no_place_in_a_bundle_is_refused(path: str, fault: str) -> None:
    with pytest.raises(BundleRejected) as rejected:
        parse_manifest(manifest({path: ENTRY}))
    assert (rejected.value.file, rejected.value.fault) == (path, fault)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "is not valid JSON"),
        (b"[]", "does not have exactly format and files"),
        (b'{"format": 1}', "does not have exactly format and files"),
        (manifest({"bundle.toml": ENTRY}, more=1), "does not have exactly format and files"),
        (json.dumps({"format": True, "files": {}}).encode(), "is not of format 1"),
        (json.dumps({"format": 2, "files": {}}).encode(), "is not of format 1"),
        (manifest({}), f"does not list 1..{MAX_FILES} files"),
        (manifest([]), f"does not list 1..{MAX_FILES} files"),
        (manifest({f"weights/{n}.safetensors": ENTRY for n in range(MAX_FILES + 1)}), f"does not list 1..{MAX_FILES}"),
        (manifest({f"adapters/{n}/weights.safetensors": ENTRY for n in range(65)}), "lists 65 adapters, more than 64"),
        (manifest({"bundle.toml": 1}), "does not have exactly sha256 and size"),
        (manifest({"bundle.toml": ENTRY | {"mode": 1}}), "does not have exactly sha256 and size"),
        (manifest({"bundle.toml": ENTRY | {"sha256": "AB" * 32}}), "not 64 lower-case hex digits"),
        (manifest({"bundle.toml": ENTRY | {"sha256": "ab" * 31}}), "not 64 lower-case hex digits"),
        (manifest({"bundle.toml": ENTRY | {"size": -1}}), "has a size outside"),
        (manifest({"bundle.toml": ENTRY | {"size": 2**41}}), "has a size outside"),
        (manifest({"bundle.toml": ENTRY | {"size": True}}), "has a size outside"),
        (manifest({"bundle.toml": ENTRY | {"size": 1.0}}), "has a size outside"),
        (manifest({"tokenizer.json": ENTRY | {"size": MAX_SMALL_FILE_BYTES + 1}}), f"more than {MAX_SMALL_FILE_BYTES}"),
        (b'{"format": 1, "format": 1, "files": {}}', "gives a key twice"),
        (b'{"format": 1, "files": {"bundle.toml": 1, "bundle.toml": 1}}', "gives a key twice"),
        (b'{"format": 1, "files": {"\\uD800": 1}}', "is not valid JSON"),
        (b'{"format": 1, "files": ' + b'{"a":' * 50_000, "is nested too deeply"),
        (b" " * (MAX_BYTES + 1), f"more than {MAX_BYTES}"),
    ],
)
def test_a_malformed_manifest_is_refused(data: bytes, fault: str) -> None:
    with pytest.raises(BundleRejected) as rejected:
        parse_manifest(data)
    assert fault in rejected.value.fault


def test_a_manifest_survives_writing_and_reading_and_its_digest_is_the_identity() -> None:
    entries = [
        FileEntry("weights/b.safetensors", bytes(32), 2**33),
        FileEntry("bundle.toml", bytes(range(32)), 0),
        FileEntry("templates/chat.jinja", bytes(32), 1),
        FileEntry("weights/a.safetensors", bytes(32), 1),
        FileEntry("adapters/a-b/weights.safetensors", bytes(32), 2**33),
        FileEntry("adapters/a/weights.safetensors", bytes(32), 1),
    ]
    data = render_manifest(entries)
    assert data == render_manifest(reversed(entries))
    parsed = parse_manifest(data)
    assert dict(parsed.files) == {entry.path: entry for entry in entries}
    assert parsed.identity == hashlib.sha256(data).digest()
    assert [entry.path for entry in parsed.weights] == ["weights/a.safetensors", "weights/b.safetensors"]
    assert parsed.template_ids == ("chat",)
    assert list(parsed.adapters.items()) == [("a", entries[-1]), ("a-b", entries[-2])]


@settings(deadline=None)
@given(st.text(max_size=40))
def test_no_path_leads_out_of_the_bundle(path: str) -> None:
    try:
        parse_manifest(manifest({path: ENTRY}))
    except BundleRejected:
        return
    assert not path.startswith("/")
    assert ".." not in path.split("/")
