//! The operations that a device offers.
//!
//! Everything an operation reads or writes lies on the device behind an associated type; host memory appears only in
//! `upload_*`, `download*` and the block transfers. An implementation may enqueue: operations take effect in the order
//! in which they are called, and only a download waits for them. Activations are f32 tensors `[rows, width]`, a row for
//! each token of the step. The caller gives an `out` its rows with [`Backend::resize`], save where an operation says
//! that it does so itself; no operation is asked for zero rows.
//!
//! **Batch invariance.** Each element of a result is computed in one order that depends on the element's own inputs and
//! never on how many other rows, sequences, chunks or threads share the call.
//!
//! **Equal paths.** `linear_add` gives bit for bit what `linear` and then `add` give, `linear_gated` what `linear` of
//! both parts and then `gated` give, and what an operand holds for one reader does not depend on its other readers. So
//! a row without an adapter does not see whether its neighbours have one.

use crate::batch::StepPlan;
use crate::description::Activation;
use crate::rope::RopeTable;
use crate::sampler::{Drawn, RowFault};
use crate::sampling::Sampling;
use crate::weights::{MatrixSpec, VectorSpec};
use std::ops::Range;
use std::sync::Arc;

/// Type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvDtype {
    /// 32-bit float.
    F32,
    /// bfloat16, rounded to nearest even.
    Bf16,
}

/// Shape of one rank's paged KV cache. A block holds `block_size_tokens` tokens of every layer.
#[derive(Clone, Copy, Debug)]
pub struct CacheShape {
    /// Number of blocks.
    pub block_count: usize,
    /// Tokens of a block.
    pub block_size_tokens: usize,
    /// Layers of the rank.
    pub layer_count: usize,
    /// Key and value heads of the rank.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Element type.
    pub dtype: KvDtype,
}

/// One row to sample.
#[derive(Clone, Debug)]
pub struct SampleRow {
    /// Its row in the logits.
    pub logits_row: usize,
    /// Place of the new token in its sequence.
    pub position: u32,
    /// Its parameters.
    pub sampling: Arc<Sampling>,
    /// Bits of the tokens that may be drawn; all where absent.
    pub allowed: Option<Vec<u32>>,
}

/// How a layer attends.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Multiplies q · k.
    pub scale: f32,
    /// s = cap · tanh(s / cap), where there is one; after the scale, before mask and softmax.
    pub softcap: Option<f32>,
    /// Positions that a token sees, itself included; all up to itself where absent.
    pub window: Option<usize>,
    /// Which of the step's rotary tables turns q and k; none where absent.
    pub rope: Option<usize>,
}

/// Heads of a rank. Query heads `g · i` to `g · (i + 1)` share key head i, g being `query / kv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads.
    pub kv: usize,
    /// Elements of a head.
    pub dim: usize,
}

/// What a linear layer multiplies with and adds.
pub struct Linear<B: Backend> {
    /// `[outputs, inputs]`
    pub weight: B::Matrix,
    /// `[outputs]`
    pub bias: Option<B::Vector>,
}

/// An adapter's pair for one matrix `[rows, K]`: adds (x · aᵀ) · bᵀ.
#[derive(Clone, Debug)]
pub struct LowRank<M> {
    /// `[r, K]`
    pub a: M,
    /// `[rows, r]`
    pub b: M,
}

/// A device, as one rank uses it.
pub trait Backend: Send + Sync + Sized + 'static {
    /// Faults of the device: out of memory, lost. Its text must hold nothing of a request.
    type Error: std::error::Error + Send + Sync + 'static;
    /// A weight matrix.
    type Matrix: Send + Sync;
    /// A norm's weight or a bias.
    type Vector: Send + Sync;
    /// Rotary frequencies.
    type Rope: Send + Sync;
    /// Activations `[rows, width]`, f32.
    type Tensor: Send;
    /// Activations in the forms that matrices read (quantised, narrowed, interleaved), made once and shared by the
    /// matrices that read them.
    type Operand: Send;
    /// Keys and values of all sequences.
    type Cache: Send;
    /// Tokens, positions and block tables of a step.
    type Step: Send;
    /// Sampling parameters of a step, and its draws afterwards.
    type Samples: Send;

    /// Prepares a matrix, or a part of one, of the weights that the backend was created with.
    fn upload_matrix(&self, spec: &MatrixSpec) -> Result<Self::Matrix, Self::Error>;
    /// Prepares a vector of the weights.
    fn upload_vector(&self, spec: &VectorSpec) -> Result<Self::Vector, Self::Error>;
    /// Prepares rotary frequencies.
    fn upload_rope(&self, table: &RopeTable) -> Result<Self::Rope, Self::Error>;
    /// Prepares the indices of a step. `ropes` are the model's rotary tables in the order that [`Attention::rope`]
    /// counts.
    fn upload_step(&self, plan: Arc<StepPlan>, ropes: &[Self::Rope]) -> Result<Self::Step, Self::Error>;
    /// Prepares the sampling of a step.
    fn upload_samples(&self, rows: Vec<SampleRow>) -> Result<Self::Samples, Self::Error>;

    /// A tensor of no rows.
    fn tensor(&self, width: usize) -> Result<Self::Tensor, Self::Error>;
    /// Gives a tensor `rows` rows; their content is unspecified.
    fn resize(&self, tensor: &mut Self::Tensor, rows: usize) -> Result<(), Self::Error>;
    /// Copies a tensor to the host, row after row.
    fn download(&self, tensor: &Self::Tensor) -> Result<Vec<f32>, Self::Error>;
    /// An operand that holds nothing yet.
    fn operand(&self) -> Result<Self::Operand, Self::Error>;
    /// The draws of [`Backend::sample`], in the order of the uploaded rows.
    fn download_samples(&self, samples: Self::Samples) -> Result<Vec<Result<Drawn, RowFault>>, Self::Error>;

    /// A zeroed cache.
    fn cache(&self, shape: &CacheShape) -> Result<Self::Cache, Self::Error>;
    /// Bytes of one block as [`Backend::read_blocks`] gives them.
    fn block_bytes(&self, cache: &Self::Cache) -> usize;
    /// Zeroes blocks; ids are in range.
    fn zero_blocks(&self, cache: &mut Self::Cache, ids: &[u32]) -> Result<(), Self::Error>;
    /// Copies blocks into `out`, which has their exact size; ids are in range.
    fn read_blocks(&self, cache: &Self::Cache, ids: &[u32], out: &mut [u8]) -> Result<(), Self::Error>;
    /// Copies `bytes`, which have their exact size, into blocks; ids are in range and distinct.
    fn write_blocks(&self, cache: &mut Self::Cache, ids: &[u32], bytes: &[u8]) -> Result<(), Self::Error>;

    /// `out[t] = table[token[t]] · scale`
    fn embed(
        &self,
        step: &Self::Step,
        table: &Self::Matrix,
        scale: f32,
        out: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;
    /// `out = x / sqrt(mean(x²) + eps) · weight`, row by row, in the forms that `readers` read.
    fn prepare_normed(
        &self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        readers: &[&Self::Matrix],
        out: &mut Self::Operand,
    ) -> Result<(), Self::Error>;
    /// `out = x` in the forms that `readers` read.
    fn prepare(&self, x: &Self::Tensor, readers: &[&Self::Matrix], out: &mut Self::Operand) -> Result<(), Self::Error>;
    /// `out = [x · w₀ᵀ + b₀ | x · w₁ᵀ + b₁ | …]`. Gives `out` the operand's rows; its width is the sum of the outputs.
    fn linear(&self, x: &Self::Operand, parts: &[&Linear<Self>], out: &mut Self::Tensor) -> Result<(), Self::Error>;
    /// `out += x · wᵀ + b`
    fn linear_add(&self, x: &Self::Operand, part: &Linear<Self>, out: &mut Self::Tensor) -> Result<(), Self::Error>;
    /// `out = act(x · gateᵀ + b) · (x · upᵀ + b)`. Gives `out` the operand's rows.
    fn linear_gated(
        &self,
        x: &Self::Operand,
        gate: &Linear<Self>,
        up: &Linear<Self>,
        activation: Activation,
        out: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;
    /// `out[rows, column..] += (x[rows] · aᵀ) · bᵀ` for one adapter, whose `a` is among the operand's readers.
    fn low_rank(
        &self,
        x: &Self::Operand,
        rows: Range<usize>,
        pair: &LowRank<Self::Matrix>,
        out: &mut Self::Tensor,
        column: usize,
    ) -> Result<(), Self::Error>;
    /// `out = act(wide[.., ..n]) · wide[.., n..]`, n being the width of `out`.
    fn gated(&self, wide: &Self::Tensor, activation: Activation, out: &mut Self::Tensor) -> Result<(), Self::Error>;
    /// `qkv` is `[q | k | v]` of every token: norms each head of q and of k where `norms` (their weights and eps) is
    /// given, then turns them, and writes k and v into the step's slots of the rank's layer `layer`.
    fn place(
        &self,
        step: &Self::Step,
        layer: usize,
        how: (Heads, &Attention),
        norms: Option<(&[Self::Vector; 2], f32)>,
        qkv: &mut Self::Tensor,
        cache: &mut Self::Cache,
    ) -> Result<(), Self::Error>;
    /// Attends each token's q to its own sequence up to itself: `out` is `[tokens, query heads · dim]`.
    fn attend(
        &self,
        step: &Self::Step,
        layer: usize,
        how: (Heads, &Attention),
        qkv: &Self::Tensor,
        cache: &Self::Cache,
        out: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;
    /// `x += y`
    fn add(&self, x: &mut Self::Tensor, y: &Self::Tensor) -> Result<(), Self::Error>;
    /// `x += norm(y)`, the norm of [`Backend::prepare_normed`].
    fn add_normed(
        &self,
        x: &mut Self::Tensor,
        y: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
    ) -> Result<(), Self::Error>;
    /// `x = cap · tanh(x / cap)`
    fn softcap(&self, x: &mut Self::Tensor, cap: f32) -> Result<(), Self::Error>;
    /// `out[i] = x[rows[i]]`
    fn gather(&self, x: &Self::Tensor, rows: &[u32], out: &mut Self::Tensor) -> Result<(), Self::Error>;
    /// Overwrites one element: a test's fault.
    fn poke(&self, x: &mut Self::Tensor, row: usize, column: usize, value: f32) -> Result<(), Self::Error>;
    /// Draws a token for each uploaded row; `logits` are changed.
    fn sample(&self, logits: &mut Self::Tensor, samples: &mut Self::Samples) -> Result<(), Self::Error>;

    // Between ranks. A backend learns its place when it is made ([`crate::exchange::Link`]). All ranks of a group call
    // the same operation in the same order; a lone rank is asked for none of them.

    /// Sum over the tensor ranks of this stage, added in the order of the ranks; every rank gets it.
    fn all_reduce(&self, x: &mut Self::Tensor) -> Result<(), Self::Error>;
    /// All tensor ranks' columns side by side, in the order of the ranks. Rank 0 gets them in `out`, which has its
    /// rows; the others' `out` is left alone.
    fn gather_columns(&self, x: &Self::Tensor, out: &mut Self::Tensor) -> Result<(), Self::Error>;
    /// To the same tensor rank of the next pipeline stage.
    fn send(&self, x: &Self::Tensor) -> Result<(), Self::Error>;
    /// From the same tensor rank of the stage before. Gives `x` the rows that came.
    fn receive(&self, x: &mut Self::Tensor) -> Result<(), Self::Error>;
}
