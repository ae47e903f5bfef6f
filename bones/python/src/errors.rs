//! Rust's errors as Python's exceptions, and the wall at which panics end.

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use tie_bones_cpu::backend::CpuError;
use tie_bones_model::engine::EngineError;

create_exception!(_native, BonesError, PyException, "Bones failed; the base of its errors.");
create_exception!(_native, DescriptionError, BonesError, "A model description was refused.");
create_exception!(_native, WeightsError, BonesError, "Weights do not hold the described model.");
create_exception!(_native, BatchError, BonesError, "The caller asked for what cannot be done: names row and field.");

/// Any other failure.
pub fn bones(error: impl Display) -> PyErr {
    BonesError::new_err(error.to_string())
}

/// A caller's fault.
pub fn batch(error: impl Display) -> PyErr {
    BatchError::new_err(error.to_string())
}

/// An engine's error by whose fault it is.
pub fn engine(error: EngineError<CpuError>) -> PyErr {
    if error.is_callers_fault() { batch(error) } else { bones(error) }
}

/// Runs `work`, turning a panic into an exception that says where, not what: a panic's text may hold values.
pub fn guarded<T>(what: &str, work: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(bones(format!("internal fault in {what}"))))
}
