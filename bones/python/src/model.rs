//! A described model over mapped weights.

use crate::errors::{DescriptionError, WeightsError, guarded};
use pyo3::prelude::*;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use tie_bones_cpu::regions::Regions;
use tie_bones_model::description::Description;
use tie_bones_model::weights::WeightTable;

/// A decoder: its description and where its weights lie.
#[pyclass(frozen, module = "tie.bones._native")]
pub struct Model {
    pub description: Description,
    pub regions: Arc<Regions>,
    pub table: WeightTable,
}

/// A file of our own for a descriptor of the caller's.
fn duplicated(fd: i32) -> std::io::Result<File> {
    if fd < 0 {
        return Err(std::io::Error::from_raw_os_error(9));
    }
    // SAFETY: not negative; a number that is no open descriptor fails in the duplication and is not used otherwise. The
    // caller, who passes it, keeps it open for the length of this call.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map(File::from)
}

fn map(regions: &[i32]) -> PyResult<Regions> {
    let files = regions.iter().map(|&fd| duplicated(fd)).collect::<std::io::Result<Vec<_>>>();
    files
        .and_then(|files| Regions::map(&files))
        .map_err(|error| WeightsError::new_err(format!("weights cannot be mapped: {error}")))
}

#[pymethods]
impl Model {
    #[new]
    fn new(py: Python<'_>, description_json: &str, regions: Vec<i32>) -> PyResult<Self> {
        guarded("model", || {
            py.detach(|| {
                let description =
                    Description::from_json(description_json).map_err(|e| DescriptionError::new_err(e.to_string()))?;
                let regions = Arc::new(map(&regions)?);
                let table = WeightTable::resolve(&description, &regions.images())
                    .map_err(|e| WeightsError::new_err(e.to_string()))?;
                Ok(Self { description, regions, table })
            })
        })
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.description.vocab_size
    }

    #[getter]
    fn context_length(&self) -> usize {
        self.description.context_length
    }

    #[getter]
    fn layer_count(&self) -> usize {
        self.description.layer_count
    }

    #[getter]
    fn kv_heads(&self) -> usize {
        self.description.kv_heads
    }

    #[getter]
    fn head_dim(&self) -> usize {
        self.description.head_dim
    }

    #[getter]
    fn weight_bytes(&self) -> u64 {
        self.table.bytes
    }

    fn __repr__(&self) -> String {
        let d = &self.description;
        format!("<Model of {} layers, {} bytes of weights>", d.layer_count, self.table.bytes)
    }
}
