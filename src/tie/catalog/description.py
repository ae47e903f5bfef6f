"""What `bundle.toml` says of a model: values only, each checked once, here, and trusted afterwards.

The `[model]` table is exactly what Bones reads; `ModelDescription.to_json` hands it over. Whether the weights agree
with it is `layout`'s question, whether the file is the signed one `bundle`'s.
"""

import json
import re
import tomllib
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, cast, get_args

from tie.catalog.attention import GLOBAL, AttentionKind, Kinds, parse_kinds, parse_pattern
from tie.catalog.bounds import (
    MAX_CONTEXT,
    MAX_EOS,
    MAX_EPS,
    MAX_HEAD_DIM,
    MAX_HEADS,
    MAX_HIDDEN,
    MAX_INTERMEDIATE,
    MAX_LAYERS,
    MAX_SCALE,
    MAX_VOCAB,
    MIN_EPS,
    MIN_SCALE,
)
from tie.catalog.errors import BundleRejected
from tie.catalog.tables import Table
from tie.catalog.tools import ToolsDescription, parse_tools

FILE: Final = "bundle.toml"
FORMAT: Final = 1
MAX_BYTES: Final = 64 * 1024
LAYOUT: Final = "panels-1"
_FORMER_LAYOUTS: Final = ("rows-1",)
NAME_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_ARCHITECTURE_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_TEMPLATE_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

Activation = Literal["silu", "gelu_tanh"]
WeightDtype = Literal["f32", "bf16", "int8", "int4"]
KvDtype = Literal["f32", "bf16"]
TokenizerKind = Literal["byte_bpe", "sentencepiece"]

ACTIVATIONS: Final = get_args(Activation)
_FLAGS: Final = ("tied_embeddings", "qkv_bias", "output_bias", "mlp_bias", "qk_norm", "post_norms")
TOKENIZER_FILES: Final[dict[str, str]] = {"byte_bpe": "tokenizer.json", "sentencepiece": "tokenizer.model"}


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A decoder. What has a default here is what a plain Llama has; `attention.uniform` makes its `attention`."""

    architecture: str  # these three are for people and for the reader of the weights; nothing is computed from them
    layout: str
    dtype: WeightDtype
    hidden_size: int
    intermediate_size: int
    layer_count: int
    query_heads: int
    kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    tied_embeddings: bool
    attention: Kinds
    layer_pattern: tuple[str, ...] = (GLOBAL,)
    """Kinds of attention, repeated over the layers."""
    activation: Activation = "silu"
    embedding_scale: float = 1.0
    """Multiplies embedded rows."""
    attention_scale: float | None = None
    """Multiplies q·k; None is the usual head_dim^-0.5."""
    attention_softcap: float | None = None
    """A score s becomes cap * tanh(s / cap), after the scale and before the mask."""
    logit_softcap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """RMSNorm of every head of q and k, before the rotary embedding."""
    post_norms: bool = False
    """RMSNorm of what attention and MLP put out, before it is added."""

    @property
    def score_scale(self) -> float:
        return float(self.head_dim**-0.5) if self.attention_scale is None else self.attention_scale

    def kind_of(self, layer: int) -> AttentionKind:
        return self.attention[self.layer_pattern[layer % len(self.layer_pattern)]]

    def to_table(self) -> dict[str, Any]:
        """The `[model]` table; an optional key that is not set is absent, as in the file."""
        table: dict[str, Any] = _without_none(asdict(self)) | {"layer_pattern": list(self.layer_pattern)}
        if self.embedding_scale == 1:
            del table["embedding_scale"]
        return table

    def to_json(self) -> str:
        """What Bones takes; keys sorted, so that equal models have equal text."""
        return json.dumps(self.to_table(), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class TokenizerDescription:
    kind: TokenizerKind
    bos_token_id: int | None
    add_bos: bool
    eos_token_ids: tuple[int, ...]

    @property
    def file(self) -> str:
        return TOKENIZER_FILES[self.kind]


@dataclass(frozen=True, slots=True)
class KvDescription:
    block_size_tokens: int
    dtype: KvDtype


@dataclass(frozen=True, slots=True)
class BundleDescription:
    name: str
    release: str
    model: ModelDescription
    tokenizer: TokenizerDescription
    chat_template: str | None
    kv: KvDescription
    tools: ToolsDescription | None = None
    """None where the model is not known to call any."""


def parse_description(data: bytes, file: str = FILE) -> BundleDescription:
    if len(data) > MAX_BYTES:
        raise BundleRejected(file, f"is {len(data)} bytes, more than {MAX_BYTES}")
    try:
        values = tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BundleRejected(file, "is not valid TOML") from error
    top = Table(file, values)
    top.integer("format", FORMAT, FORMAT)
    name, release = top.text("name", NAME_PATTERN), top.text("release", NAME_PATTERN)
    model = _model(top.table("model"))
    tokenizer = _tokenizer(top.table("tokenizer"), model.vocab_size)
    chat_template = _chat(top.table("chat")) if top.has("chat") else None
    kv = _kv(top.table("kv"))
    tools = parse_tools(top.table("tools")) if top.has("tools") else None
    if tools is not None and chat_template is None:
        raise top.refusal("tools", "is there, but no chat template, which alone could tell a model of tools")
    top.finish()
    return BundleDescription(name, release, model, tokenizer, chat_template, kv, tools)


def parse_model(values: dict[str, Any], file: str = FILE) -> ModelDescription:
    """A `[model]` table by itself, checked like one that came from a file."""
    return _model(Table(file, values, "model."))


def _model(table: Table) -> ModelDescription:
    layout = _layout(table)
    head_dim = table.integer("head_dim", 2, MAX_HEAD_DIM)
    layer_count = table.integer("layer_count", 1, MAX_LAYERS)
    query_heads, kv_heads = table.integer("query_heads", 1, MAX_HEADS), table.integer("kv_heads", 1, MAX_HEADS)
    if query_heads % kv_heads:
        raise table.refusal("query_heads", f"is {query_heads}, not a multiple of kv_heads {kv_heads}")
    attention = parse_kinds(table.table("attention"), head_dim)
    embedding_scale = _optional_scale(table, "embedding_scale")
    model = ModelDescription(
        architecture=table.text("architecture", _ARCHITECTURE_PATTERN),
        layout=layout,
        dtype=cast(WeightDtype, table.choice("dtype", "f32", "bf16", "int8", "int4")),
        hidden_size=table.integer("hidden_size", 1, MAX_HIDDEN),
        intermediate_size=table.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        layer_count=layer_count,
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=table.integer("vocab_size", 1, MAX_VOCAB),
        context_length=table.integer("context_length", 1, MAX_CONTEXT),
        norm_eps=table.number("norm_eps", MIN_EPS, MAX_EPS),
        attention=attention,
        layer_pattern=parse_pattern(table, "layer_pattern", attention, layer_count),
        activation=cast(Activation, table.choice("activation", *ACTIVATIONS)),
        embedding_scale=1.0 if embedding_scale is None else embedding_scale,
        attention_scale=_optional_scale(table, "attention_scale"),
        attention_softcap=_optional_scale(table, "attention_softcap"),
        logit_softcap=_optional_scale(table, "logit_softcap"),
        **{flag: table.flag(flag) for flag in _FLAGS},
    )
    table.finish()
    return model


def _layout(table: Table) -> str:
    """Looked at first: a bundle of an earlier layout has other keys too, and what helps is the same."""
    for former in _FORMER_LAYOUTS:
        if table.holds("layout", former):
            raise table.refusal("layout", f"is {former}, which is read no more: import the model again")
    return table.choice("layout", LAYOUT)


def _optional_scale(table: Table, key: str) -> float | None:
    return table.number(key, MIN_SCALE, MAX_SCALE) if table.has(key) else None


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if value is not None
    }


def _tokenizer(table: Table, vocab_size: int) -> TokenizerDescription:
    kind = cast(TokenizerKind, table.choice("kind", *TOKENIZER_FILES))
    table.choice("file", TOKENIZER_FILES[kind])
    bos = table.integer("bos_token_id", 0, vocab_size - 1) if table.has("bos_token_id") else None
    add_bos = table.flag("add_bos")
    if add_bos and bos is None:
        raise table.refusal("add_bos", "is true, but there is no bos_token_id")
    tokenizer = TokenizerDescription(
        kind, bos, add_bos, table.integers("eos_token_ids", 0, vocab_size - 1, most=MAX_EOS)
    )
    table.finish()
    return tokenizer


def _chat(table: Table) -> str:
    template = table.text("template", _TEMPLATE_PATTERN)
    table.finish()
    return template


def _kv(table: Table) -> KvDescription:
    block_size_tokens = table.integer("block_size_tokens", 1, 1024)
    if block_size_tokens & (block_size_tokens - 1):
        raise table.refusal("block_size_tokens", f"is {block_size_tokens}, not a power of two")
    kv = KvDescription(block_size_tokens, cast(KvDtype, table.choice("dtype", "f32", "bf16")))
    table.finish()
    return kv
