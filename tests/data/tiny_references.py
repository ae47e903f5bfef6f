"""The reference implementation of a tiny model: the library's own class for its architecture, with our seeded weights.

Needs torch and transformers (the extra `reference`). What it shares with the tests are the weights and the spelling of
names and keys in `doubles`; a mistake in those does not load or gives other logits.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
import transformers
from doubles.golden import TINY_SEED
from doubles.hf_config import config_of
from doubles.hf_names import their_weights
from doubles.tiny_model import tiny_weights

from tie.catalog.description import ModelDescription


def tiny_reference(model: ModelDescription) -> transformers.PreTrainedModel:
    keys = config_of(model, is_old=False) | {"bos_token_id": 1, "pad_token_id": 0}
    config = transformers.AutoConfig.for_model(**keys, attn_implementation="eager")
    reference = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    weights = their_weights(model, tiny_weights(model, TINY_SEED))
    state = {name: torch.from_numpy(np.ascontiguousarray(values)) for name, values in weights.items()}
    if model.tied_embeddings:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    reference.load_state_dict(state, strict=True)
    return reference


def reference_logits(reference: transformers.PreTrainedModel, tokens: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """After each of the tokens."""
    with torch.no_grad():
        logits: npt.NDArray[np.float32] = reference(torch.tensor(tokens[None].astype(np.int64))).logits[0].numpy()
    return logits


def gemma3_with_images(text: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """The text model as it is within the model that sees images."""
    vision = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    }
    config = transformers.Gemma3Config(text_config=text.config.to_dict(), vision_config=vision, mm_tokens_per_image=4)
    whole = transformers.Gemma3ForConditionalGeneration._from_config(config, dtype=torch.float32).eval()
    whole.model.language_model.load_state_dict(text.model.state_dict(), strict=True)
    whole.tie_weights()
    return whole


def saved_config(reference: transformers.PreTrainedModel, directory: Path) -> str:
    """`config.json` as the library writes it, beside the weights that it writes too."""
    reference.save_pretrained(directory)
    return (directory / "config.json").read_text()
