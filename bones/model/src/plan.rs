//! Checks a batch against an engine and plans the step, so that the rest of the crate trusts every index.

use crate::batch::{Batch, BatchError, Limits, MAX_STEP_TOKENS, RowPlan, Segment, StepPlan};
use std::ops::Range;

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

    fn check_shapes(&self, limits: &Limits) -> Result<(), BatchError> {
        let rows = self.query_lens.len();
        if rows == 0 {
            return Err(field("query_lens", "is empty"));
        }
        if self.token_ids.len() > MAX_STEP_TOKENS {
            return Err(field("token_ids", format!("has {} entries, limit {MAX_STEP_TOKENS}", self.token_ids.len())));
        }
        let mut lengths = vec![
            ("context_lens", self.context_lens.len(), rows),
            ("block_table_offsets", self.block_table_offsets.len(), rows + 1),
            ("sample", self.sample.len(), rows),
            ("sampling", self.sampling.len(), rows),
        ];
        lengths.extend(self.adapters.as_ref().map(|adapters| ("adapters", adapters.len(), rows)));
        for (name, have, want) in lengths {
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
        self.plan_adapter(row, limits, first_token..first_token + query_len, &mut plan.segments)?;
        self.check_sampling(row, limits)
    }

    fn plan_adapter(
        &self,
        row: usize,
        limits: &Limits,
        tokens: Range<usize>,
        segments: &mut Vec<Segment>,
    ) -> Result<(), BatchError> {
        let adapter = match self.adapters.as_ref().map_or(-1, |adapters| adapters[row]) {
            -1 => return Ok(()),
            adapter => below(adapter, limits.adapter_count).ok_or_else(|| {
                let fault = format!("is {adapter}, must be -1 for none or below {}", limits.adapter_count);
                row_fault(row, "adapters", fault)
            })? as usize,
        };
        match segments.last_mut() {
            Some(last) if last.adapter == adapter && last.tokens.end == tokens.start => last.tokens.end = tokens.end,
            _ => segments.push(Segment { adapter, tokens }),
        }
        Ok(())
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
