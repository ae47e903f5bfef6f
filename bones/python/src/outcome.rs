//! What a step gave.

use numpy::{PyArray1, PyArray2, PyArrayMethods, ToPyArray};
use pyo3::prelude::*;
use tie_bones_model::engine::Outcome as Given;

/// What a step gave, row by row.
#[pyclass(frozen, get_all, module = "tie.bones._native")]
pub struct Outcome {
    /// S: the sampled token, −1 where there is none.
    tokens: Py<PyArray1<i32>>,
    /// Rows without a token, and why.
    errors: Vec<(usize, String)>,
    /// S: log-probabilities, the sampled token's first.
    logprobs: Vec<Option<Vec<(u32, f32)>>>,
    /// `[S or T, V]`
    logits: Option<Py<PyArray2<f32>>>,
}

impl Outcome {
    pub fn new(py: Python<'_>, given: Given, vocab_size: usize) -> PyResult<Self> {
        let logits = match given.logits {
            None => None,
            Some(logits) => {
                let rows = logits.len() / vocab_size;
                Some(PyArray1::from_vec(py, logits).reshape([rows, vocab_size])?.unbind())
            }
        };
        Ok(Self {
            tokens: given.tokens.to_pyarray(py).unbind(),
            errors: given.errors.into_iter().map(|(row, fault)| (row, fault.to_string())).collect(),
            logprobs: given.logprobs,
            logits,
        })
    }
}

#[pymethods]
impl Outcome {
    fn __repr__(&self) -> String {
        format!("<Outcome of {} rows, {} errors>", self.logprobs.len(), self.errors.len())
    }
}
