"""Makes a bundle's `token_bytes.bin` from its tokenizer, by the very code by which a request process spells tokens: the
runtime and the app must agree on every byte, or a stop string would be cut at the wrong place.
"""

from tie.bundling.errors import SourceRejected
from tie.catalog import token_bytes
from tie.catalog.description import BundleDescription
from tie.prompting.errors import TokenizerRejected
from tie.prompting.tokenizers import load_tokenizer


def make_token_bytes(described: BundleDescription, tokenizer: bytes) -> bytes:
    """Ids that the tokenizer does not know, up to the model's vocabulary, spell nothing."""
    vocab_size = described.model.vocab_size
    try:
        loaded = load_tokenizer(described.tokenizer, tokenizer, vocab_size)
    except TokenizerRejected as error:
        raise SourceRejected(described.tokenizer.file, "cannot be used by request processes") from error
    return token_bytes.render([loaded.spelling(token) for token in range(vocab_size)])
