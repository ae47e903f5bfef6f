"""Opens and verifies the bundle and builds Bones' model and engine over it. Only what has been verified is mapped."""

from __future__ import annotations

from typing import Final

from tie.afm_runtime.bones_forwarding import BonesForwarding
from tie.afm_runtime.config import AfmRuntimeConfig
from tie.afm_runtime.decoding.grammar import Vocabulary
from tie.afm_runtime.intake import Serves
from tie.afm_runtime.scheduling.limits import Limits
from tie.afm_runtime.serving import Attached
from tie.catalog.bundle import open_bundle
from tie.catalog.description import BundleDescription
from tie.catalog.signature import load_trusted_keys
from tie.contracts.errors import ConfigError
from tie.servicekit.config import NodeConfig

_KV_ITEM_BYTES: Final = {"f32": 4, "bf16": 2}
_NO_BYTES: Final[dict[int, bytes]] = {}


def attach(node: NodeConfig, runtime: AfmRuntimeConfig) -> Attached:
    """Raises CatalogError for a bundle that cannot be trusted, ConfigError for a cache without room for a block."""
    keys = load_trusted_keys(node.trusted_keys_file) if node.trusted_keys_file else ()
    # Into sealed memory: a file that somebody truncates under the map would end this process by SIGBUS.
    with open_bundle(
        node.bundle_dir, trusted_keys=keys, allow_unsigned=node.allow_unsigned_bundle, into_memory=True
    ) as bundle:
        described, token_bytes = bundle.description, bundle.token_bytes()
        block_count = runtime.block_count or runtime.kv_bytes // block_bytes(described)
        if block_count < 1:
            raise ConfigError(f"[afm_runtime] kv_bytes is {runtime.kv_bytes}: less than one block of cache")
        forwarding = BonesForwarding(
            described, bundle.weight_fds(), bundle.adapter_fds(), block_count=block_count, threads=runtime.threads
        )
    forwarding.warm()
    eos_ids = frozenset(described.tokenizer.eos_token_ids)
    vocab_size = described.model.vocab_size
    return Attached(
        serves=Serves(
            bundle_identity=bundle.identity,
            vocab_size=vocab_size,
            context_length=described.model.context_length,
            cache_blocks=block_count,
            cache_block_size=described.kv.block_size_tokens,
            max_choices=runtime.max_running,
            eos_ids=eos_ids,
            has_token_bytes=token_bytes is not None,
            adapters=bundle.adapter_names,
        ),
        forwarding=forwarding,
        token_bytes=token_bytes if token_bytes is not None else _NO_BYTES,
        block_count=block_count,
        limits=Limits(
            block_size=described.kv.block_size_tokens,
            step_token_budget=runtime.step_token_budget,
            max_running=runtime.max_running,
            max_queued=runtime.max_queued,
        ),
        vocabulary=None if token_bytes is None else Vocabulary(token_bytes, vocab_size, eos_ids),
    )


def block_bytes(described: BundleDescription) -> int:
    """Keys and values of one block over all layers."""
    model, kv = described.model, described.kv
    numbers = 2 * model.layer_count * model.kv_heads * model.head_dim * kv.block_size_tokens
    return numbers * _KV_ITEM_BYTES[kv.dtype]
