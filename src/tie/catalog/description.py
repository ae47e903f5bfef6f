"""What `bundle.toml` says of a model: values only, each checked once, here, and trusted afterwards.

The `[model]` table is exactly what Bones reads; `ModelDescription.to_json` hands it over. Whether the weights agree
with it is `layout`'s question, whether the file is the signed one `bundle`'s.
"""

import json
import re
import tomllib
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, cast

from tie.catalog.errors import BundleRejected
from tie.catalog.tables import Table

FILE: Final = "bundle.toml"
FORMAT: Final = 1
MAX_BYTES: Final = 64 * 1024
LAYOUT: Final = "rows-1"
NAME_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_ARCHITECTURE_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_TEMPLATE_PATTERN: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")

WeightDtype = Literal["f32", "bf16", "int8", "int4"]
KvDtype = Literal["f32", "bf16"]
TokenizerKind = Literal["byte_bpe", "sentencepiece"]

TOKENIZER_FILES: Final[dict[str, str]] = {"byte_bpe": "tokenizer.json", "sentencepiece": "tokenizer.model"}

# What Bones and the processes around it are dimensioned for; a number beyond these is a mistake or an attack.
MAX_HIDDEN: Final = 65_536
MAX_INTERMEDIATE: Final = 524_288
MAX_LAYERS: Final = 512
MAX_HEADS: Final = 1_024
MAX_HEAD_DIM: Final = 1_024
MAX_VOCAB: Final = 2**22
MAX_CONTEXT: Final = 2**24
MAX_EOS: Final = 32
MAX_THETA: Final = 1e12
MAX_FACTOR: Final = 1e4


@dataclass(frozen=True, slots=True)
class NoScaling:
    kind: Literal["none"] = "none"


@dataclass(frozen=True, slots=True)
class LinearScaling:
    factor: float
    kind: Literal["linear"] = "linear"


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context_length: int
    kind: Literal["llama3"] = "llama3"


@dataclass(frozen=True, slots=True)
class YarnScaling:
    factor: float
    original_context_length: int
    beta_fast: float
    beta_slow: float
    attention_factor: float | None = None
    kind: Literal["yarn"] = "yarn"


RopeScaling = NoScaling | LinearScaling | Llama3Scaling | YarnScaling


@dataclass(frozen=True, slots=True)
class Rope:
    theta: float
    rotary_dim: int
    scaling: RopeScaling = NoScaling()


@dataclass(frozen=True, slots=True)
class ModelDescription:
    architecture: str
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
    attention_bias: bool
    activation: Literal["silu"]
    rope: Rope

    def to_table(self) -> dict[str, Any]:
        """The `[model]` table; an optional key that is not set is absent, as in the file."""
        table = asdict(self)
        scaling = {key: value for key, value in table["rope"]["scaling"].items() if value is not None}
        table["rope"]["scaling"] = scaling
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
    top.finish()
    return BundleDescription(name, release, model, tokenizer, chat_template, kv)


def parse_model(values: dict[str, Any], file: str = FILE) -> ModelDescription:
    """A `[model]` table by itself, checked like one that came from a file."""
    return _model(Table(file, values, "model."))


def _model(table: Table) -> ModelDescription:
    head_dim = table.integer("head_dim", 2, MAX_HEAD_DIM)
    query_heads, kv_heads = table.integer("query_heads", 1, MAX_HEADS), table.integer("kv_heads", 1, MAX_HEADS)
    if query_heads % kv_heads:
        raise table.refusal("query_heads", f"is {query_heads}, not a multiple of kv_heads {kv_heads}")
    model = ModelDescription(
        architecture=table.text("architecture", _ARCHITECTURE_PATTERN),
        layout=table.choice("layout", LAYOUT),
        dtype=cast(WeightDtype, table.choice("dtype", "f32", "bf16", "int8", "int4")),
        hidden_size=table.integer("hidden_size", 1, MAX_HIDDEN),
        intermediate_size=table.integer("intermediate_size", 1, MAX_INTERMEDIATE),
        layer_count=table.integer("layer_count", 1, MAX_LAYERS),
        query_heads=query_heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=table.integer("vocab_size", 1, MAX_VOCAB),
        context_length=table.integer("context_length", 1, MAX_CONTEXT),
        norm_eps=table.number("norm_eps", 1e-12, 1e-1),
        tied_embeddings=table.flag("tied_embeddings"),
        attention_bias=table.flag("attention_bias"),
        activation=cast(Literal["silu"], table.choice("activation", "silu")),
        rope=_rope(table.table("rope"), head_dim),
    )
    table.finish()
    return model


def _rope(table: Table, head_dim: int) -> Rope:
    theta = table.number("theta", 1.0, MAX_THETA)
    rotary_dim = table.integer("rotary_dim", 2, head_dim)
    if rotary_dim % 2:
        raise table.refusal("rotary_dim", f"is {rotary_dim}, not even")
    scaling = _scaling(table.table("scaling")) if table.has("scaling") else NoScaling()
    table.finish()
    return Rope(theta, rotary_dim, scaling)


def _scaling(table: Table) -> RopeScaling:
    scaling: RopeScaling
    match table.choice("kind", "none", "linear", "llama3", "yarn"):
        case "linear":
            scaling = LinearScaling(table.number("factor", 1.0, MAX_FACTOR))
        case "llama3":
            scaling = Llama3Scaling(
                table.number("factor", 1.0, MAX_FACTOR),
                table.number("low_freq_factor", 1e-3, MAX_FACTOR),
                table.number("high_freq_factor", 1e-3, MAX_FACTOR),
                table.integer("original_context_length", 1, MAX_CONTEXT),
            )
            if scaling.high_freq_factor <= scaling.low_freq_factor:
                raise table.refusal("high_freq_factor", "is not above low_freq_factor")
        case "yarn":
            scaling = YarnScaling(
                table.number("factor", 1.0, MAX_FACTOR),
                table.integer("original_context_length", 1, MAX_CONTEXT),
                table.number("beta_fast", 1e-3, MAX_FACTOR),
                table.number("beta_slow", 1e-3, MAX_FACTOR),
                table.number("attention_factor", 1e-3, MAX_FACTOR) if table.has("attention_factor") else None,
            )
        case _:
            scaling = NoScaling()
    table.finish()
    return scaling


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
