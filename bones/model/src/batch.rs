//! One step's work as flat arrays, and the checks that let the rest of the crate trust it.

use crate::sampling::{Sampling, SamplingError};
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
    /// Logits to return.
    pub want_logits: WantLogits,
    /// Puts a value into a row's logits: a test's fault.
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
}

impl Batch {
    /// Checks the batch against an engine and plans the step.
    pub fn plan(&self, limits: &Limits) -> Result<StepPlan, BatchError> {
        self.check_shapes(limits)?;
        let mut plan = StepPlan::default();
        for row in 0..self.query_lens.len() {
            self.plan_row(row, limits, &mut plan)?;
        }
        if plan.tokens.len() != self.token_ids.len() {
            let fault = format!("has {} entries, query_lens add up to {}", self.token_ids.len(), plan.tokens.len());
            return Err(field("token_ids", fault));
        }
        check_aliases(&plan, limits)?;
        Ok(plan)
    }

    /// The mask of one row.
    pub fn allowed(&self, row: usize, vocab_size: usize) -> Option<&[u32]> {
        let words = vocab_size.div_ceil(32);
        self.allowed_mask.as_ref().map(|mask| &mask[row * words..(row + 1) * words])
    }

    fn check_shapes(&self, limits: &Limits) -> Result<(), BatchError> {
        let rows = self.query_lens.len();
        if rows == 0 {
            return Err(field("query_lens", "is empty"));
        }
        if self.token_ids.len() > MAX_STEP_TOKENS {
            return Err(field("token_ids", format!("has {} entries, limit {MAX_STEP_TOKENS}", self.token_ids.len())));
        }
        let words = vec![
            ("context_lens", self.context_lens.len(), rows),
            ("block_table_offsets", self.block_table_offsets.len(), rows + 1),
            ("sample", self.sample.len(), rows),
            ("sampling", self.sampling.len(), rows),
        ];
        for (name, have, want) in words {
            if have != want {
                return Err(field(name, format!("has {have} entries, must have {want} for {rows} rows")));
            }
        }
        let words = limits.vocab_size.div_ceil(32);
        if let Some(mask) = self.allowed_mask.as_ref().filter(|mask| mask.len() != rows * words) {
            return Err(field("allowed_mask", format!("has {} words, must have {rows} × {words}", mask.len())));
        }
        match self.poison {
            Some(_) if !limits.fault_injection => Err(field("poison", "is refused: fault injection is off")),
            Some((row, _)) if row >= rows => Err(field("poison", format!("names row {row} of {rows}"))),
            _ => self.check_offsets(),
        }
    }

    fn check_offsets(&self) -> Result<(), BatchError> {
        let offsets = &self.block_table_offsets;
        let ends = (offsets.first(), offsets.last());
        if ends != (Some(&0), Some(&(self.block_tables.len() as i32))) {
            let fault = format!("must run from 0 to {}, the length of block_tables", self.block_tables.len());
            return Err(field("block_table_offsets", fault));
        }
        match offsets.windows(2).position(|pair| pair[0] > pair[1]) {
            Some(row) => Err(row_fault(row, "block_table_offsets", "decrease")),
            None => Ok(()),
        }
    }

    fn plan_row(&self, row: usize, limits: &Limits, plan: &mut StepPlan) -> Result<(), BatchError> {
        let query_len = usize::try_from(self.query_lens[row]).unwrap_or(0);
        if query_len == 0 {
            return Err(row_fault(row, "query_lens", "must be at least 1"));
        }
        let context_len = usize::try_from(self.context_lens[row]).unwrap_or(0);
        if context_len < query_len || context_len > limits.context_length {
            let fault = format!("must be {query_len} (its query_lens) to {}", limits.context_length);
            return Err(row_fault(row, "context_lens", fault));
        }
        let first_token = plan.tokens.len();
        let Some(tokens) = self.token_ids.get(first_token..first_token + query_len) else {
            return Err(row_fault(row, "query_lens", "exceed token_ids"));
        };
        for (place, &token) in tokens.iter().enumerate() {
            let Some(token) = below(token, limits.vocab_size) else {
                let fault = format!("entry {place} of the row lies outside the vocabulary of {}", limits.vocab_size);
                return Err(row_fault(row, "token_ids", fault));
            };
            plan.tokens.push(token);
            plan.positions.push((context_len - query_len + place) as u32);
        }
        let first_block = plan.tables.len();
        plan.rows.push(RowPlan { first_token, query_len, context_len, first_block });
        self.plan_blocks(row, limits, context_len, &mut plan.tables)?;
        self.check_sampling(row, limits)
    }

    fn plan_blocks(&self, row: usize, limits: &Limits, context: usize, out: &mut Vec<u32>) -> Result<(), BatchError> {
        // check_offsets proved that the offsets ascend from 0 to the table's length.
        let [begin, end] = [row, row + 1].map(|at| self.block_table_offsets[at] as usize);
        let table = &self.block_tables[begin..end];
        let needed = context.div_ceil(limits.block_size_tokens);
        if table.len() < needed {
            let fault = format!("has {} blocks, {context} tokens need {needed}", table.len());
            return Err(row_fault(row, "block_tables", fault));
        }
        for (place, &block) in table.iter().enumerate() {
            let Some(block) = below(block, limits.block_count) else {
                let fault = format!("entry {place} is {block}, must be 0 to {}", limits.block_count - 1);
                return Err(row_fault(row, "block_tables", fault));
            };
            if place < needed {
                out.push(block);
            }
        }
        Ok(())
    }

    fn check_sampling(&self, row: usize, limits: &Limits) -> Result<(), BatchError> {
        match &self.sampling[row] {
            None if self.sample[row] => Err(row_fault(row, "sampling", "is missing where sample is set")),
            None => Ok(()),
            Some(sampling) => sampling
                .check()
                .and_then(|()| sampling.fits(limits.vocab_size))
                .map_err(|source| BatchError::Sampling { row, source }),
        }
    }
}

/// A block that one row writes in this step must not be read or written through any other entry: rows would depend on
/// each other.
fn check_aliases(plan: &StepPlan, limits: &Limits) -> Result<(), BatchError> {
    let size = limits.block_size_tokens;
    let mut writer = vec![usize::MAX; limits.block_count];
    for (row, r) in plan.rows.iter().enumerate() {
        for place in (r.context_len - r.query_len) / size..r.context_len.div_ceil(size) {
            let entry = r.first_block + place;
            let owner = &mut writer[plan.tables[entry] as usize];
            if *owner != usize::MAX {
                let fault = format!("entry {place} is block {}, which this step already writes", plan.tables[entry]);
                return Err(row_fault(row, "block_tables", fault));
            }
            *owner = entry;
        }
    }
    for (row, r) in plan.rows.iter().enumerate() {
        for place in 0..r.context_len.div_ceil(size) {
            let entry = r.first_block + place;
            let owner = writer[plan.tables[entry] as usize];
            if owner != usize::MAX && owner != entry {
                let fault = format!("entry {place} is block {}, which this step writes elsewhere", plan.tables[entry]);
                return Err(row_fault(row, "block_tables", fault));
            }
        }
    }
    Ok(())
}

fn below(value: i32, limit: usize) -> Option<u32> {
    u32::try_from(value).ok().filter(|&v| (v as usize) < limit)
}

fn field(field: &'static str, fault: impl Into<String>) -> BatchError {
    BatchError::Field { field, fault: fault.into() }
}

fn row_fault(row: usize, field: &'static str, fault: impl Into<String>) -> BatchError {
    BatchError::Row { row, field, fault: fault.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits =
        Limits { vocab_size: 40, context_length: 32, block_count: 6, block_size_tokens: 4, fault_injection: false };

    /// Row 0 prefills 5 tokens into blocks 3 and 1, row 1 decodes its sixth into block 0 after block 2.
    fn good() -> Batch {
        Batch {
            token_ids: vec![1, 2, 3, 4, 5, 6],
            query_lens: vec![5, 1],
            context_lens: vec![5, 6],
            block_tables: vec![3, 1, 2, 0],
            block_table_offsets: vec![0, 2, 4],
            sample: vec![false, true],
            sampling: vec![None, Some(Arc::default())],
            ..Batch::default()
        }
    }

    fn refusal(change: impl Fn(&mut Batch)) -> String {
        let mut batch = good();
        change(&mut batch);
        batch.plan(&LIMITS).unwrap_err().to_string()
    }

    #[test]
    fn bad_batches_are_refused_by_row_and_field() {
        assert!(refusal(|b| *b = Batch::default()).contains("query_lens is empty"));
        assert!(refusal(|b| b.token_ids[1] = 40).contains("row 0: token_ids entry 1 of the row lies outside"));
        assert!(refusal(|b| b.token_ids[5] = -1).contains("row 1: token_ids"));
        assert!(refusal(|b| b.token_ids.push(1)).contains("token_ids has 7 entries, query_lens add up to 6"));
        assert!(refusal(|b| b.query_lens[0] = 0).contains("row 0: query_lens must be at least 1"));
        assert!(refusal(|b| b.query_lens[0] = i32::MIN).contains("row 0: query_lens"));
        assert!(refusal(|b| b.query_lens[1] = 2).contains("row 1: query_lens exceed token_ids"));
        assert!(refusal(|b| b.context_lens[0] = 4).contains("row 0: context_lens must be 5"));
        assert!(refusal(|b| b.context_lens[1] = 33).contains("row 1: context_lens must be 1 (its query_lens) to 32"));
        assert!(refusal(|b| b.context_lens[1] = 9).contains("row 1: block_tables has 2 blocks, 9 tokens need 3"));
        assert!(refusal(|b| b.block_tables[2] = 6).contains("row 1: block_tables entry 0 is 6, must be 0 to 5"));
        assert!(refusal(|b| b.block_tables[2] = -1).contains("row 1: block_tables entry 0 is -1"));
        assert!(refusal(|b| b.block_table_offsets[1] = 5).contains("row 1: block_table_offsets decrease"));
        assert!(refusal(|b| b.block_table_offsets[0] = -1).contains("must run from 0 to 4"));
        assert!(refusal(|b| b.block_table_offsets.push(4)).contains("block_table_offsets has 4 entries"));
        assert!(refusal(|b| b.sample.clear()).contains("sample has 0 entries"));
        assert!(refusal(|b| b.sampling[1] = None).contains("row 1: sampling is missing"));
        assert!(refusal(|b| b.allowed_mask = Some(vec![0; 3])).contains("allowed_mask has 3 words, must have 2 × 2"));
        assert!(refusal(|b| b.poison = Some((0, 1.0))).contains("poison is refused"));
    }

    #[test]
    fn blocks_that_a_step_writes_belong_to_one_entry() {
        assert!(refusal(|b| b.block_tables[3] = 1).contains("already writes"));
        assert!(refusal(|b| b.block_tables[2] = 1).contains("writes elsewhere"));
        assert!(refusal(|b| b.block_tables[2] = 0).contains("writes elsewhere"));
    }

    #[test]
    fn shared_blocks_that_nobody_writes_are_fine() {
        let batch = Batch {
            token_ids: vec![1, 2],
            query_lens: vec![1, 1],
            context_lens: vec![5, 6],
            block_tables: vec![2, 0, 2, 1],
            block_table_offsets: vec![0, 2, 4],
            sample: vec![false; 2],
            sampling: vec![None, None],
            ..Batch::default()
        };
        assert_eq!(batch.plan(&LIMITS).unwrap().positions, [4, 5]);
    }

    #[test]
    fn a_plan_holds_positions_and_used_blocks() {
        let plan = Batch { block_tables: vec![3, 1, 5, 2, 0], block_table_offsets: vec![0, 3, 5], ..good() }
            .plan(&LIMITS)
            .unwrap();
        assert_eq!(plan.positions, [0, 1, 2, 3, 4, 5]);
        assert_eq!(plan.tables, [3, 1, 2, 0]);
        assert_eq!(plan.rows[1].first_block, 2);
    }

    proptest! {
        #[test]
        fn any_numbers_are_answered(
            tokens in proptest::collection::vec(-2..42, 0..8),
            query in proptest::collection::vec(prop_oneof![-1..6, Just(i32::MAX)], 0..4),
            context in proptest::collection::vec(prop_oneof![-1..40, Just(i32::MAX)], 0..4),
            tables in proptest::collection::vec(-1..7, 0..8),
            offsets in proptest::collection::vec(prop_oneof![-1..9, Just(i32::MAX)], 0..5),
        ) {
            let rows = query.len();
            let batch = Batch {
                token_ids: tokens, query_lens: query, context_lens: context, block_tables: tables,
                block_table_offsets: offsets, sample: vec![false; rows], sampling: vec![None; rows],
                ..Batch::default()
            };
            if let Ok(plan) = batch.plan(&LIMITS) {
                prop_assert!(plan.tables.iter().all(|&b| b < 6));
                prop_assert_eq!(plan.tokens.len(), plan.positions.len());
            }
        }
    }
}
