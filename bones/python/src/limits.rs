//! The machine's limits, for benchmarks.

use crate::errors::{batch, bones, guarded};
use pyo3::prelude::*;
use tie_bones_cpu::limits::{Arithmetic, gemm_peak, read_bandwidth};
use tie_bones_cpu::pool::MAX_THREADS;

/// Most memory that is swept.
const MAX_BYTES: i64 = 1 << 36;

fn within(field: &str, value: i64, most: i64) -> PyResult<usize> {
    let refusal = || batch(format!("limits: {field} is {value}, must be 1 to {most}"));
    if (1..=most).contains(&value) { usize::try_from(value).map_err(|_| refusal()) } else { Err(refusal()) }
}

/// Bytes a second that the threads read together.
#[pyfunction]
pub fn measure_read_bandwidth(py: Python<'_>, bytes: i64, threads: i64) -> PyResult<f64> {
    let (bytes, threads) = (within("bytes", bytes, MAX_BYTES)?, within("threads", threads, MAX_THREADS as i64)?);
    guarded("measure_read_bandwidth", || py.detach(|| read_bandwidth(bytes, threads).map_err(bones)))
}

/// Operations a second of the threads together.
#[pyfunction]
pub fn measure_gemm_peak(py: Python<'_>, kind: &str, threads: i64) -> PyResult<f64> {
    let kind = Arithmetic::named(kind).ok_or_else(|| batch("limits: kind must be f32, bf16 or int8"))?;
    let threads = within("threads", threads, MAX_THREADS as i64)?;
    guarded("measure_gemm_peak", || py.detach(|| Ok(gemm_peak(kind, threads))))
}
