//! The operations that a device offers.
//!
//! Everything an operation reads or writes lies on the device behind an associated type; host memory appears only in
//! `upload_*`, `download*` and the block transfers. An implementation may enqueue: operations take effect in the order
//! in which they are called, and only a download waits for them. Activations are f32 tensors `[rows, width]`, a row for
//! each token of the step.
//!
//! **Batch invariance.** Each element of a result is computed in one order that depends on the element's own inputs and
//! never on how many other rows, sequences, chunks or threads share the call.

use crate::batch::StepPlan;
use crate::rope::RopeTable;
use crate::sampler::{Drawn, RowFault};
use crate::sampling::Sampling;
use crate::weights::{MatrixSpec, VectorSpec};
use std::sync::Arc;

/// Type of cached keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvDtype {
    /// 32-bit float.
    F32,
    /// bfloat16, rounded to nearest even.
    Bf16,
}

/// Shape of a paged KV cache. A block holds `block_size_tokens` tokens of every layer.
#[derive(Clone, Copy, Debug)]
pub struct CacheShape {
    /// Number of blocks.
    pub block_count: usize,
    /// Tokens of a block.
    pub block_size_tokens: usize,
    /// Layers.
    pub layer_count: usize,
    /// Key and value heads.
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

/// A device.
pub trait Backend {
    /// Faults of the device: out of memory, lost.
    type Error: std::error::Error + Send + Sync + 'static;
    /// A weight matrix.
    type Matrix;
    /// A norm's weight or a bias.
    type Vector;
    /// Rotary frequencies.
    type Rope;
    /// Activations.
    type Tensor;
    /// Keys and values of all sequences.
    type Cache;
    /// Tokens, positions and block tables of a step.
    type Step;
    /// Sampling parameters of a step, and its draws afterwards.
    type Samples;

    /// Prepares a matrix of the weights that the backend was created with.
    fn upload_matrix(&self, spec: &MatrixSpec) -> Result<Self::Matrix, Self::Error>;
    /// Prepares a vector of the weights.
    fn upload_vector(&self, spec: &VectorSpec) -> Result<Self::Vector, Self::Error>;
    /// Prepares rotary frequencies.
    fn upload_rope(&self, table: &RopeTable) -> Result<Self::Rope, Self::Error>;
    /// Prepares the indices of a step.
    fn upload_step(&self, plan: StepPlan, rope: &Self::Rope) -> Result<Self::Step, Self::Error>;
    /// Prepares the sampling of a step.
    fn upload_samples(&self, rows: Vec<SampleRow>) -> Result<Self::Samples, Self::Error>;

    /// A tensor of no rows.
    fn tensor(&self, width: usize) -> Result<Self::Tensor, Self::Error>;
    /// Gives a tensor `rows` rows; their content is unspecified.
    fn resize(&self, tensor: &mut Self::Tensor, rows: usize) -> Result<(), Self::Error>;
    /// Copies a tensor to the host, row after row.
    fn download(&self, tensor: &Self::Tensor) -> Result<Vec<f32>, Self::Error>;
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

    /// `out[t] = table[token[t]]`
    fn embed(&self, step: &Self::Step, table: &Self::Matrix, out: &mut Self::Tensor) -> Result<(), Self::Error>;
    /// `out = x / sqrt(mean(x²) + eps) · weight`, row by row
    fn rms_norm(
        &self,
        x: &Self::Tensor,
        weight: &Self::Vector,
        eps: f32,
        out: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;
    /// `out = x · wᵀ + bias`
    fn linear(
        &self,
        x: &Self::Tensor,
        w: &Self::Matrix,
        bias: Option<&Self::Vector>,
        out: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;
    /// Turns `q` and `k` by their positions and writes `k` and `v` into the step's slots of a layer.
    fn rope_and_write_kv(
        &self,
        step: &Self::Step,
        layer: usize,
        qkv: &mut [Self::Tensor; 3],
        cache: &mut Self::Cache,
    ) -> Result<(), Self::Error>;
    /// Attends each token to its own sequence up to itself.
    fn paged_attention(
        &self,
        step: &Self::Step,
        layer: usize,
        q: &Self::Tensor,
        cache: &Self::Cache,
        out: &mut Self::Tensor,
    ) -> Result<(), Self::Error>;
    /// `gate = silu(gate) · up`
    fn gated_silu(&self, gate: &mut Self::Tensor, up: &Self::Tensor) -> Result<(), Self::Error>;
    /// `x = x + y`
    fn add(&self, x: &mut Self::Tensor, y: &Self::Tensor) -> Result<(), Self::Error>;
    /// `out[i] = x[rows[i]]`
    fn gather(&self, x: &Self::Tensor, rows: &[u32], out: &mut Self::Tensor) -> Result<(), Self::Error>;
    /// Overwrites one element: a test's fault.
    fn poke(&self, x: &mut Self::Tensor, row: usize, column: usize, value: f32) -> Result<(), Self::Error>;
    /// Draws a token for each uploaded row; `logits` are changed.
    fn sample(&self, logits: &mut Self::Tensor, samples: &mut Self::Samples) -> Result<(), Self::Error>;
}
