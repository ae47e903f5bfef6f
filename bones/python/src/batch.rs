//! One step's arrays, copied out of Python's.

use crate::arrays::{numbers, shaped};
use crate::sampling::Sampling;
use pyo3::prelude::*;
use std::sync::Arc;
use tie_bones_model::batch::{Batch as Arrays, WantLogits};

/// Sequences to advance.
#[pyclass(frozen, module = "tie.bones._native")]
pub struct Batch(pub Arrays);

fn parameters(sampling: Vec<Option<Bound<'_, Sampling>>>) -> Vec<Option<Arc<tie_bones_model::sampling::Sampling>>> {
    sampling.into_iter().map(|entry| entry.map(|sampling| Arc::clone(&sampling.get().0))).collect()
}

#[pymethods]
impl Batch {
    #[new]
    #[pyo3(signature = (
        *, token_ids, query_lens, context_lens, block_tables, block_table_offsets, sample, sampling,
        allowed_mask = None, adapters = None, want_logits = false, want_all_logits = false, poison = None
    ))]
    fn new(
        token_ids: &Bound<'_, PyAny>,
        query_lens: &Bound<'_, PyAny>,
        context_lens: &Bound<'_, PyAny>,
        block_tables: &Bound<'_, PyAny>,
        block_table_offsets: &Bound<'_, PyAny>,
        sample: &Bound<'_, PyAny>,
        sampling: Vec<Option<Bound<'_, Sampling>>>,
        allowed_mask: Option<&Bound<'_, PyAny>>,
        adapters: Option<&Bound<'_, PyAny>>,
        want_logits: bool,
        want_all_logits: bool,
        poison: Option<(usize, f32)>,
    ) -> PyResult<Self> {
        let want_logits = match (want_logits, want_all_logits) {
            (_, true) => WantLogits::All,
            (true, false) => WantLogits::Last,
            (false, false) => WantLogits::No,
        };
        Ok(Self(Arrays {
            token_ids: numbers("token_ids", token_ids)?,
            query_lens: numbers("query_lens", query_lens)?,
            context_lens: numbers("context_lens", context_lens)?,
            block_tables: numbers("block_tables", block_tables)?,
            block_table_offsets: numbers("block_table_offsets", block_table_offsets)?,
            sample: numbers("sample", sample)?,
            sampling: parameters(sampling),
            allowed_mask: allowed_mask.map(|mask| shaped("allowed_mask", mask, 2)).transpose()?,
            adapters: adapters.map(|adapters| numbers("adapters", adapters)).transpose()?,
            want_logits,
            poison,
        }))
    }

    fn __repr__(&self) -> String {
        format!("<Batch of {} rows, {} tokens>", self.0.query_lens.len(), self.0.token_ids.len())
    }
}
