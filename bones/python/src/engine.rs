//! A model with a cache and threads.

use crate::arrays::shaped;
use crate::batch::Batch;
use crate::errors::{batch, bones, engine, guarded};
use crate::model::Model;
use crate::outcome::Outcome;
use numpy::{PyArray1, PyArrayMethods};
use pyo3::prelude::*;
use std::sync::{Mutex, MutexGuard};
use tie_bones_cpu::backend::Cpu;
use tie_bones_cpu::pool::MAX_THREADS;
use tie_bones_cpu::simd::Isa;
use tie_bones_model::backend::KvDtype;
use tie_bones_model::engine::{Engine as Executor, EngineOptions};

/// A model ready to execute.
#[pyclass(frozen, module = "tie.bones._native")]
pub struct Engine {
    executor: Mutex<Executor<Cpu>>,
    vocab_size: usize,
    isa: Isa,
    #[pyo3(get)]
    block_count: usize,
    #[pyo3(get)]
    block_size_tokens: usize,
    #[pyo3(get)]
    kv_bytes_per_block: usize,
}

fn kv_dtype(name: &str) -> PyResult<KvDtype> {
    match name {
        "f32" => Ok(KvDtype::F32),
        "bf16" => Ok(KvDtype::Bf16),
        _ => Err(batch("engine: kv_dtype must be f32 or bf16")),
    }
}

fn count(field: &str, value: i64) -> PyResult<usize> {
    usize::try_from(value).map_err(|_| batch(format!("engine: {field} is {value}, must be at least 1")))
}

impl Engine {
    /// A panic under the lock leaves the engine in an unknown state: it refuses from then on.
    fn executor(&self) -> PyResult<MutexGuard<'_, Executor<Cpu>>> {
        self.executor.lock().map_err(|_| bones("engine is unusable after an internal fault"))
    }

    fn guarded<T: Send>(
        &self,
        py: Python<'_>,
        what: &str,
        work: impl FnOnce(&mut Executor<Cpu>) -> PyResult<T> + Send,
    ) -> PyResult<T> {
        guarded(what, || py.detach(|| work(&mut *self.executor()?)))
    }
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (
        model, *, block_count, block_size_tokens, kv_dtype, threads, tensor_parallel = 1, pipeline_parallel = 1,
        isa = None, fault_injection = false
    ))]
    fn new(
        py: Python<'_>,
        model: &Model,
        block_count: i64,
        block_size_tokens: i64,
        kv_dtype: &str,
        threads: i64,
        tensor_parallel: i64,
        pipeline_parallel: i64,
        isa: Option<&str>,
        fault_injection: bool,
    ) -> PyResult<Self> {
        let options = EngineOptions {
            block_count: count("block_count", block_count)?,
            block_size_tokens: count("block_size_tokens", block_size_tokens)?,
            kv_dtype: self::kv_dtype(kv_dtype)?,
            tensor_parallel: count("tensor_parallel", tensor_parallel)?,
            pipeline_parallel: count("pipeline_parallel", pipeline_parallel)?,
            fault_injection,
        };
        let threads = count("threads", threads)?;
        if !(1..=MAX_THREADS).contains(&threads) {
            return Err(batch(format!("engine: threads is {threads}, must be 1 to {MAX_THREADS}")));
        }
        let isa = isa.map_or_else(Isa::from_environment, Isa::named).map_err(batch)?;
        guarded("engine", || {
            py.detach(|| {
                let backend = |link| Cpu::new(model.regions.clone(), threads, isa, link);
                let executor = Executor::new(&model.resolved, &options, backend).map_err(engine)?;
                Ok(Self {
                    vocab_size: model.resolved.description.vocab_size,
                    isa,
                    block_count: options.block_count,
                    block_size_tokens: options.block_size_tokens,
                    kv_bytes_per_block: executor.block_bytes(),
                    executor: Mutex::new(executor),
                })
            })
        })
    }

    #[getter]
    fn isa(&self) -> &'static str {
        self.isa.name()
    }

    /// Executes one step.
    #[pyo3(signature = (batch, /))]
    fn forward(&self, py: Python<'_>, batch: &Batch) -> PyResult<Outcome> {
        let given = self.guarded(py, "forward", |executor| executor.forward(&batch.0).map_err(engine))?;
        Outcome::new(py, given, self.vocab_size)
    }

    /// The first half of a step.
    #[pyo3(signature = (batch, /))]
    fn advance(&self, py: Python<'_>, batch: &Batch) -> PyResult<()> {
        self.guarded(py, "advance", |executor| executor.advance(&batch.0).map_err(engine))
    }

    /// The second half.
    #[pyo3(signature = (allowed_mask = None))]
    fn sample(&self, py: Python<'_>, allowed_mask: Option<&Bound<'_, PyAny>>) -> PyResult<Outcome> {
        let mask: Option<Vec<u32>> = allowed_mask.map(|mask| shaped("allowed_mask", mask, 2)).transpose()?;
        let given = self.guarded(py, "sample", |executor| executor.sample(mask.as_deref()).map_err(engine))?;
        Outcome::new(py, given, self.vocab_size)
    }

    /// Zeroes blocks.
    #[pyo3(signature = (ids, /))]
    fn zero_blocks(&self, py: Python<'_>, ids: Vec<i64>) -> PyResult<()> {
        self.guarded(py, "zero_blocks", |executor| executor.zero_blocks(&ids).map_err(engine))
    }

    /// The bytes of blocks.
    #[pyo3(signature = (ids, /))]
    fn read_blocks<'py>(&self, py: Python<'py>, ids: Vec<i64>) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let bytes = self.guarded(py, "read_blocks", |executor| executor.read_blocks(&ids).map_err(engine))?;
        Ok(PyArray1::from_vec(py, bytes))
    }

    /// Overwrites blocks with bytes that `read_blocks` gave.
    #[pyo3(signature = (ids, buffer, /))]
    fn write_blocks(&self, py: Python<'_>, ids: Vec<i64>, buffer: &Bound<'_, PyAny>) -> PyResult<()> {
        let refusal = || batch("buffer must be bytes or a contiguous array of uint8");
        if let Ok(bytes) = buffer.extract::<&[u8]>() {
            return self.guarded(py, "write_blocks", |executor| executor.write_blocks(&ids, bytes).map_err(engine));
        }
        let array = buffer.cast::<PyArray1<u8>>().map_err(|_| refusal())?.try_readonly().map_err(|_| refusal())?;
        let bytes = array.as_slice().map_err(|_| refusal())?;
        self.guarded(py, "write_blocks", |executor| executor.write_blocks(&ids, bytes).map_err(engine))
    }

    fn __repr__(&self) -> String {
        format!("<Engine of {} blocks, {}>", self.block_count, self.isa.name())
    }
}
