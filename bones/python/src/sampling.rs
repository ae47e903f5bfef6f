//! Sampling parameters of one sequence.

use crate::arrays::numbers;
use crate::errors::batch;
use pyo3::prelude::*;
use std::sync::Arc;
use tie_bones_model::sampling::Sampling as Parameters;

/// Sampling parameters of one sequence, checked.
#[pyclass(frozen, module = "tie.bones._native")]
pub struct Sampling(pub Arc<Parameters>);

fn whole(field: &str, value: i64) -> PyResult<usize> {
    usize::try_from(value).map_err(|_| batch(format!("sampling.{field} must be at least 0")))
}

fn id(field: &str, value: i64) -> PyResult<u32> {
    u32::try_from(value).map_err(|_| batch(format!("sampling.{field} must hold ids of at least 0")))
}

#[pymethods]
impl Sampling {
    #[new]
    #[pyo3(signature = (
        temperature, top_p = 1.0, top_k = 0, min_p = 0.0, repetition_penalty = 1.0, presence_penalty = 0.0,
        frequency_penalty = 0.0, seed = 0, choice_index = 0, logit_bias = Vec::new(), history = None, prompt_len = 0,
        logprobs = None
    ))]
    fn new(
        temperature: f64,
        top_p: f64,
        top_k: i64,
        min_p: f64,
        repetition_penalty: f64,
        presence_penalty: f64,
        frequency_penalty: f64,
        seed: u64,
        choice_index: u32,
        logit_bias: Vec<(i64, f64)>,
        history: Option<&Bound<'_, PyAny>>,
        prompt_len: i64,
        logprobs: Option<i64>,
    ) -> PyResult<Self> {
        let history: Vec<i32> =
            history.map(|array| numbers("sampling.history", array)).transpose()?.unwrap_or_default();
        let bias = |(token, bias): (i64, f64)| Ok((id("logit_bias", token)?, bias as f32));
        let parameters = Parameters {
            temperature,
            top_p,
            top_k: whole("top_k", top_k)?,
            min_p,
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            seed,
            choice_index,
            logit_bias: logit_bias.into_iter().map(bias).collect::<PyResult<_>>()?,
            history: history.into_iter().map(|token| id("history", token.into())).collect::<PyResult<_>>()?,
            prompt_len: whole("prompt_len", prompt_len)?,
            logprobs: logprobs.map(|count| whole("logprobs", count)).transpose()?,
        };
        parameters.check().map_err(batch)?;
        Ok(Self(Arc::new(parameters)))
    }

    // Parameters are part of a request: none is shown.
    #[allow(clippy::unused_self)]
    fn __repr__(&self) -> &'static str {
        "<Sampling>"
    }
}
