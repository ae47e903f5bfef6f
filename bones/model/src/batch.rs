//! One step's work as flat arrays: as the caller gave it, and as it is once checked ([`crate::plan`]).

use crate::sampling::{Sampling, SamplingError};
use std::ops::Range;
use std::sync::Arc;

/// Most tokens of one step.
pub const MAX_STEP_TOKENS: usize = 1 << 16;

/// The caller built a batch that cannot be executed. Names row and field; never a token.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// Arrays that do not fit together.
    #[error("batch: {field} {fault}")]
    Field {
        /// Which array.
        field: &'static str,
        /// What is wrong with it.
        fault: String,
    },
    /// A row that is out of range.
    #[error("batch row {row}: {field} {fault}")]
    Row {
        /// Which row.
        row: usize,
        /// Which array.
        field: &'static str,
        /// What is wrong.
        fault: String,
    },
    /// A row's sampling parameters.
    #[error("batch row {row}: {source}")]
    Sampling {
        /// Which row.
        row: usize,
        /// What is wrong.
        source: SamplingError,
    },
}

/// Which logits a step returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WantLogits {
    /// None.
    #[default]
    No,
    /// Those of each row's last position.
    Last,
    /// Those of every position.
    All,
}

/// Sequences to advance, as the caller gave them. S rows, T tokens.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// T tokens, row after row.
    pub token_ids: Vec<i32>,
    /// S: how many of them each row has.
    pub query_lens: Vec<i32>,
    /// S: tokens of each sequence after this step.
    pub context_lens: Vec<i32>,
    /// Blocks of each sequence, row after row.
    pub block_tables: Vec<i32>,
    /// S + 1: where each row's blocks begin.
    pub block_table_offsets: Vec<i32>,
    /// S: whether the row's last position is sampled.
    pub sample: Vec<bool>,
    /// S: parameters where `sample` is set.
    pub sampling: Vec<Option<Arc<Sampling>>>,
    /// S × ceil(V / 32): bit i of word j allows token 32 j + i.
    pub allowed_mask: Option<Vec<u32>>,
    /// S: the row's adapter, −1 for none.
    pub adapters: Option<Vec<i32>>,
    /// Logits to return.
    pub want_logits: WantLogits,
    /// Puts a value into a row's logits: a test's fault.
    pub poison: Option<(usize, f32)>,
}

/// What of a batch belongs to the second half of its step; fields as there.
pub(crate) struct ToSample {
    pub sample: Vec<bool>,
    pub sampling: Vec<Option<Arc<Sampling>>>,
    pub want_logits: WantLogits,
    pub poison: Option<(usize, f32)>,
}

/// What an engine can take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Tokens of the vocabulary.
    pub vocab_size: usize,
    /// Longest sequence.
    pub context_length: usize,
    /// Blocks of the KV cache.
    pub block_count: usize,
    /// Tokens of a block.
    pub block_size_tokens: usize,
    /// Adapters of the model.
    pub adapter_count: usize,
    /// Whether a batch may carry a fault.
    pub fault_injection: bool,
}

/// One row of a checked step.
#[derive(Clone, Copy, Debug)]
pub struct RowPlan {
    /// Its first token among all tokens of the step.
    pub first_token: usize,
    /// Its tokens.
    pub query_len: usize,
    /// Tokens of the sequence after the step.
    pub context_len: usize,
    /// Where its blocks begin in `tables`.
    pub first_block: usize,
}

/// Neighbouring rows that use one adapter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Which adapter.
    pub adapter: usize,
    /// Their tokens.
    pub tokens: Range<usize>,
}

/// A checked step, in the flat form that a device wants.
#[derive(Clone, Debug, Default)]
pub struct StepPlan {
    /// T token ids.
    pub tokens: Vec<u32>,
    /// T positions.
    pub positions: Vec<u32>,
    /// S rows.
    pub rows: Vec<RowPlan>,
    /// Blocks, row after row, only those in use.
    pub tables: Vec<u32>,
    /// Tokens that use adapters, ascending; empty where none does.
    pub segments: Vec<Segment>,
}

impl RowPlan {
    /// Its last token among all tokens of the step.
    pub fn last_token(&self) -> usize {
        self.first_token + self.query_len - 1
    }
}

impl Batch {
    /// What is kept of it until it is sampled.
    pub(crate) fn to_sample(&self) -> ToSample {
        ToSample {
            sample: self.sample.clone(),
            sampling: self.sampling.clone(),
            want_logits: self.want_logits,
            poison: self.poison,
        }
    }
}
