"""What Bones offers: see the classes. Arrays must be contiguous and of the type that is named."""

from collections.abc import Sequence
from typing import Literal, final

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Batch",
    "BatchError",
    "BonesError",
    "DescriptionError",
    "Engine",
    "Model",
    "Outcome",
    "Sampling",
    "WeightsError",
    "measure_gemm_peak",
    "measure_read_bandwidth",
]

class BonesError(Exception):
    """Bones failed: memory, threads, an internal fault. The base of the others."""

class DescriptionError(BonesError):
    """A model description was refused; names the field and what it must be."""

class WeightsError(BonesError):
    """The images do not hold the described model; names image or tensor and the fault."""

class BatchError(BonesError):
    """The caller asked for what cannot be done; names row and field, never a token."""

@final
class Model:
    """A decoder over mapped weights. Several engines may share it.

    `description_json` is the bundle's `[model]` table. `regions` are descriptors of its safetensors images, in any
    order; `adapters` are the names of LoRA adapters, each with the descriptor of its image. They are duplicated and
    mapped read-only. The caller has verified them and nobody writes them any more. Raises DescriptionError,
    WeightsError.
    """

    def __new__(
        cls, description_json: str, regions: Sequence[int], adapters: Sequence[tuple[str, int]] = ...
    ) -> Model: ...
    @property
    def adapter_names(self) -> list[str]:
        """In the order in which batches count them."""

    @property
    def vocab_size(self) -> int: ...
    @property
    def context_length(self) -> int:
        """Tokens of the longest sequence."""

    @property
    def layer_count(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def weight_bytes(self) -> int: ...

@final
class Sampling:
    """Sampling parameters of one sequence; raises BatchError where one is out of range.

    Applied in this order: allowed mask, penalties, logit bias, temperature, top-k, top-p, min-p, draw. The draw's
    random number belongs to (seed, choice_index, position of the new token in its sequence) and to nothing else.
    """

    def __new__(
        cls,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        seed: int = 0,
        choice_index: int = 0,
        logit_bias: Sequence[tuple[int, float]] = ...,
        history: NDArray[np.int32] | None = None,
        prompt_len: int = 0,
        logprobs: int | None = None,
    ) -> Sampling:
        """
        temperature: 0 to 100; 0, or so small that logits overflow, is argmax, the lowest id winning a tie.
        top_p: above 0, to 1: keeps the fewest likeliest tokens with this share, at least one.
        top_k: keeps this many likeliest tokens; 0 is off.
        min_p: 0 to 1: drops tokens less likely than this share of the likeliest.
        repetition_penalty: 0.01 to 100: divides positive and multiplies negative logits of tokens in history.
        presence_penalty, frequency_penalty: -100 to 100: subtracted from tokens in history[prompt_len:], once, and for
            each occurrence.
        logit_bias: -100 to 100, by token id.
        history: prompt and answer so far; needed for penalties only.
        logprobs: how many of the likeliest tokens to report beside the sampled one, 0 to 20; None reports nothing.
        """

@final
class Batch:
    """One step of S sequences and T tokens: prefill chunks and decoding rows in any mixture. Checked in `forward`.

    Row r feeds its next `query_lens[r]` tokens, after which its sequence holds `context_lens[r]`; its keys and values
    lie in the blocks that the r-th part of `block_tables` names. Blocks that this step writes must belong to one row.
    """

    def __new__(
        cls,
        *,
        token_ids: NDArray[np.int32],
        query_lens: NDArray[np.int32],
        context_lens: NDArray[np.int32],
        block_tables: NDArray[np.int32],
        block_table_offsets: NDArray[np.int32],
        sample: NDArray[np.bool_],
        sampling: Sequence[Sampling | None],
        allowed_mask: NDArray[np.uint32] | None = None,
        adapters: NDArray[np.int32] | None = None,
        want_logits: bool = False,
        want_all_logits: bool = False,
        poison: tuple[int, float] | None = None,
    ) -> Batch:
        """
        token_ids: T, row after row.
        query_lens: S, at least 1 each, adding up to T.
        context_lens: S, at least the row's query_lens.
        block_tables, block_table_offsets: row r's blocks are block_tables[offsets[r]:offsets[r + 1]]; S + 1 offsets.
        sample: S, whether to sample after the row's last token.
        sampling: S, given where sample is set.
        allowed_mask: [S, ceil(V / 32)]: bit i of word j allows token 32 j + i.
        adapters: S: which of the model's adapters a row uses, -1 for none.
        want_logits: return the logits of each row's last position, [S, V].
        want_all_logits: return the logits of each position, [T, V].
        poison: (row, value) puts a value into the row's logits; for engines made with fault_injection only.
        """

@final
class Outcome:
    """What a step gave."""

    @property
    def tokens(self) -> NDArray[np.int32]:
        """S: the sampled token, -1 where there is none."""

    @property
    def errors(self) -> list[tuple[int, str]]:
        """Rows whose sampling failed: "logits not finite" or "no token allowed". Other rows are not affected."""

    @property
    def logprobs(self) -> list[list[tuple[int, float]] | None]:
        """S: of the model's own distribution, before mask, penalties and temperature: the sampled token's, then the
        likeliest."""

    @property
    def logits(self) -> NDArray[np.float32] | None:
        """[S or T, V] where wanted, before any mask or penalty."""

@final
class Engine:
    """A model with a paged KV cache and threads of its own. Calls from several threads take turns.

    A row's results do not depend on the other rows, on how its prompt is cut into chunks, on its blocks' numbers or on
    `threads`, bit for bit; they may differ in rounding between instruction sets and numbers of ranks.
    """

    def __new__(
        cls,
        model: Model,
        *,
        block_count: int,
        block_size_tokens: int,
        kv_dtype: Literal["f32", "bf16"],
        threads: int,
        tensor_parallel: int = 1,
        pipeline_parallel: int = 1,
        isa: Literal["amx", "avx512", "avx2", "portable"] | None = None,
        fault_injection: bool = False,
    ) -> Engine:
        """
        threads: of each rank.
        tensor_parallel: ranks that share each layer by whole key and value heads, unevenly where need be.
        pipeline_parallel: stages that share the layers.
        isa: instruction set; by default the one that BONES_ISA names, else the best of this machine.
        fault_injection: accepts `Batch.poison`; for tests.
        Raises BatchError for a parameter out of range, BonesError when memory or threads are short.
        """

    @property
    def block_count(self) -> int: ...
    @property
    def block_size_tokens(self) -> int: ...
    @property
    def kv_bytes_per_block(self) -> int: ...
    @property
    def isa(self) -> str: ...
    def forward(self, batch: Batch, /) -> Outcome:
        """Executes one step; the GIL is free meanwhile. Raises BatchError before anything is changed, or BonesError."""

    def advance(self, batch: Batch, /) -> None:
        """The first half of `forward`, for a batch without mask: advances the rows and keeps the logits.

        The mask may be found meanwhile. Raises as `forward` does.
        """

    def sample(self, allowed_mask: NDArray[np.uint32] | None = None) -> Outcome:
        """The second half, once: samples what was advanced last, under a mask of the shape of `Batch`'s.

        Raises BatchError when nothing was advanced or the mask has another shape.
        """

    def zero_blocks(self, ids: Sequence[int], /) -> None:
        """Zeroes blocks."""

    def read_blocks(self, ids: Sequence[int], /) -> NDArray[np.uint8]:
        """The blocks' bytes one after another, kv_bytes_per_block each; the layout is this engine's own."""

    def write_blocks(self, ids: Sequence[int], buffer: bytes | NDArray[np.uint8], /) -> None:
        """Overwrites blocks with what `read_blocks` of an engine with the same model and options gave."""

def measure_read_bandwidth(bytes: int, threads: int) -> float:
    """Bytes a second that `threads` read together, sweeping `bytes` of memory; the best of several passes."""

def measure_gemm_peak(kind: str, threads: int) -> float:
    """Operations a second of `threads` together without touching memory; kind is f32, bf16 or int8."""
