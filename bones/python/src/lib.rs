//! Python's view of Bones: converts, releases the GIL, maps errors, stops panics. It decides nothing.

mod arrays;
mod batch;
mod engine;
mod errors;
mod limits;
mod model;
mod outcome;
mod sampling;

use pyo3::prelude::*;

/// The native part of `tie.bones`.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::errors::{BatchError, BonesError, DescriptionError, WeightsError};
    #[pymodule_export]
    use crate::limits::{measure_gemm_peak, measure_read_bandwidth};
    #[pymodule_export]
    use crate::model::Model;
    #[pymodule_export]
    use crate::outcome::Outcome;
    #[pymodule_export]
    use crate::sampling::Sampling;
}
