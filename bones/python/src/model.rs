//! A described model over mapped weights.

use crate::errors::{DescriptionError, WeightsError, guarded};
use pyo3::prelude::*;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use tie_bones_cpu::regions::Regions;
use tie_bones_model::description::Description;
use tie_bones_model::model::Model as Resolved;

/// A decoder: its description and where its weights lie.
#[pyclass(frozen, module = "tie.bones._native")]
pub struct Model {
    pub resolved: Resolved,
    pub regions: Arc<Regions>,
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

fn resolve(description: &str, regions: &Regions, adapters: &[(String, i32)]) -> PyResult<Resolved> {
    let description = Description::from_json(description).map_err(|e| DescriptionError::new_err(e.to_string()))?;
    let images = regions.images();
    let (weights, rest) = images.split_at(images.len() - adapters.len());
    let adapters: Vec<_> = adapters.iter().zip(rest).map(|((name, _), &image)| (name.as_str(), image)).collect();
    Resolved::resolve(description, weights, &adapters).map_err(|e| WeightsError::new_err(e.to_string()))
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (description_json, regions, adapters = Vec::new()))]
    fn new(py: Python<'_>, description_json: &str, regions: Vec<i32>, adapters: Vec<(String, i32)>) -> PyResult<Self> {
        guarded("model", || {
            py.detach(|| {
                let fds: Vec<i32> = regions.iter().copied().chain(adapters.iter().map(|(_, fd)| *fd)).collect();
                let regions = Arc::new(map(&fds)?);
                let resolved = resolve(description_json, &regions, &adapters)?;
                Ok(Self { resolved, regions })
            })
        })
    }

    #[getter]
    fn vocab_size(&self) -> usize {
        self.resolved.description.vocab_size
    }

    #[getter]
    fn context_length(&self) -> usize {
        self.resolved.description.context_length
    }

    #[getter]
    fn layer_count(&self) -> usize {
        self.resolved.description.layer_count
    }

    #[getter]
    fn kv_heads(&self) -> usize {
        self.resolved.description.kv_heads
    }

    #[getter]
    fn head_dim(&self) -> usize {
        self.resolved.description.head_dim
    }

    /// Names of the adapters, as batches count them.
    #[getter]
    fn adapter_names(&self) -> Vec<String> {
        self.resolved.adapters.iter().map(|adapter| adapter.name.clone()).collect()
    }

    #[getter]
    fn weight_bytes(&self) -> u64 {
        self.resolved.bytes()
    }

    fn __repr__(&self) -> String {
        let d = &self.resolved.description;
        format!("<Model of {} layers, {} bytes of weights>", d.layer_count, self.resolved.bytes())
    }
}
