"""Bones and our import against `transformers` itself, where it is installed: what the golden files say, made anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from doubles import golden
from doubles.bones_rows import Rows, bones_model, relative_difference
from doubles.hf_directory import write_json
from doubles.reference_model import read_weights
from doubles.tiny_model import TEST_KEY, TEST_TRUSTED, tiny_weights, tokenizer_file

from tie.bundling.importing import Wanted, import_bundle
from tie.catalog import open_bundle
from tie.catalog.description import ModelDescription

pytest.importorskip("torch", reason="torch is not installed: pip install .[reference]")
pytest.importorskip("transformers", reason="transformers is not installed: pip install .[reference]")
from data.tiny_references import gemma3_with_images, reference_logits, tiny_reference

RELATIVE = 1e-3


@pytest.mark.parametrize("case", golden.TINY_CASES)
def test_tiny_models_agree_with_the_library(case: str) -> None:
    description = golden.TINY_CASES[case]
    reference = tiny_reference(description)
    model = bones_model(description, tiny_weights(description, golden.TINY_SEED))
    for prompt in golden.tiny_prompts(case):
        expected = reference_logits(reference, np.array(prompt.tokens, np.int32))
        _, logits = Rows(model, 1, len(prompt.tokens)).step({0: prompt.tokens}, all_logits=True)
        assert logits is not None
        assert relative_difference(logits, expected, float(np.abs(expected).max())) <= RELATIVE


@pytest.mark.parametrize("case", golden.TINY_CASES)
def test_what_the_library_saves_is_imported_as_the_model_that_it_was(tmp_path: Path, case: str) -> None:
    saved = tmp_path / "saved"
    tiny_reference(_with_room(case)).save_pretrained(saved)
    _check_import(saved, _with_room(case))


def test_the_text_part_of_what_the_library_saves_with_images_is_imported(tmp_path: Path) -> None:
    saved = tmp_path / "saved"
    gemma3_with_images(tiny_reference(_with_room("gemma3"))).save_pretrained(saved)
    _check_import(saved, replace(_with_room("gemma3"), architecture="gemma3"))


def _with_room(case: str) -> ModelDescription:
    """The tiny tokenizer has more tokens than the golden models."""
    return replace(golden.TINY_CASES[case], vocab_size=512)


def _check_import(saved: Path, model: ModelDescription) -> None:
    (saved / "tokenizer.json").write_bytes(tokenizer_file("byte_bpe"))
    write_json(saved / "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    import_bundle(saved, saved.parent / "bundle", Wanted(), TEST_KEY)
    expected = tiny_weights(model, golden.TINY_SEED)
    with open_bundle(saved.parent / "bundle", trusted_keys=TEST_TRUSTED) as bundle:
        assert bundle.description.model == model
        found = read_weights(bundle)
    assert found.keys() == expected.keys()
    for name, values in found.items():
        assert np.array_equal(values, expected[name]), name
