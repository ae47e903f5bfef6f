//! One model, one cache, one device: executes batches.

use crate::backend::{Backend, CacheShape, KvDtype, SampleRow};
use crate::batch::{Batch, BatchError, Limits, StepPlan, WantLogits};
use crate::decoder::{Decoder, Workspace};
use crate::description::Description;
use crate::sampler::RowFault;
use crate::weights::WeightTable;

/// Why an engine did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum EngineError<E> {
    /// The caller's fault.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// A construction parameter or block transfer out of range: the caller's fault as well.
    #[error("engine: {field} {fault}")]
    Argument {
        /// Which parameter.
        field: &'static str,
        /// What is wrong.
        fault: String,
    },
    /// The device's fault.
    #[error("backend: {0}")]
    Backend(E),
}

/// Size and type of the cache, and what tests may do.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Blocks of the KV cache.
    pub block_count: usize,
    /// Tokens of a block, at most 1024.
    pub block_size_tokens: usize,
    /// Type of keys and values.
    pub kv_dtype: KvDtype,
    /// Whether batches may carry faults.
    pub fault_injection: bool,
}

/// What a step gave. S rows as in the batch.
#[derive(Debug)]
pub struct Outcome {
    /// S: the sampled token, −1 where there is none.
    pub tokens: Vec<i32>,
    /// Rows whose sampling failed.
    pub errors: Vec<(usize, RowFault)>,
    /// S: log-probabilities where asked for.
    pub logprobs: Vec<Option<Vec<(u32, f32)>>>,
    /// `[S or T, V]`, before any mask or penalty.
    pub logits: Option<Vec<f32>>,
}

/// A model ready to execute.
pub struct Engine<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    work: Workspace<B>,
    cache: B::Cache,
    limits: Limits,
}

impl<B: Backend> Engine<B> {
    /// Loads the weights onto the device and allocates the cache.
    pub fn new(
        backend: B,
        description: &Description,
        table: &WeightTable,
        options: EngineOptions,
    ) -> Result<Self, EngineError<B::Error>> {
        let EngineOptions { block_count, block_size_tokens, kv_dtype, fault_injection } = options;
        in_range("block_count", block_count, 1 << 24)?;
        in_range("block_size_tokens", block_size_tokens, 1024)?;
        let shape = CacheShape {
            block_count,
            block_size_tokens,
            layer_count: description.layer_count,
            kv_heads: description.kv_heads,
            head_dim: description.head_dim,
            dtype: kv_dtype,
        };
        let limits = Limits {
            vocab_size: description.vocab_size,
            context_length: description.context_length,
            block_count,
            block_size_tokens,
            fault_injection,
        };
        Ok(Self {
            decoder: Decoder::load(&backend, description, table).map_err(EngineError::Backend)?,
            work: Workspace::new(&backend, description).map_err(EngineError::Backend)?,
            cache: backend.cache(&shape).map_err(EngineError::Backend)?,
            backend,
            limits,
        })
    }

    /// Bytes of one block in [`Self::read_blocks`].
    pub fn block_bytes(&self) -> usize {
        self.backend.block_bytes(&self.cache)
    }

    /// Executes one step: advances every row, then samples those that ask for it.
    pub fn forward(&mut self, batch: &Batch) -> Result<Outcome, EngineError<B::Error>> {
        let plan = batch.plan(&self.limits)?;
        self.execute(batch, plan).map_err(EngineError::Backend)
    }

    fn execute(&mut self, batch: &Batch, plan: StepPlan) -> Result<Outcome, B::Error> {
        let rows = plan.rows.len();
        let wanted = wanted_logits(batch, &plan);
        let last: Vec<usize> = plan.rows.iter().map(|r| r.first_token + r.query_len - 1).collect();
        let contexts: Vec<usize> = plan.rows.iter().map(|r| r.context_len).collect();
        let tokens = plan.tokens.len();
        let step = self.backend.upload_step(plan, self.decoder.rope())?;
        self.decoder.advance(&self.backend, &step, tokens, &mut self.work, &mut self.cache)?;
        let mut outcome =
            Outcome { tokens: vec![-1; rows], errors: Vec::new(), logprobs: vec![None; rows], logits: None };
        if wanted.is_empty() {
            return Ok(outcome);
        }
        self.decoder.head(&self.backend, &wanted, &mut self.work)?;
        // `wanted` ascends and holds the last token of every row that is sampled.
        let logits_row = |row: usize| wanted.binary_search(&(last[row] as u32)).ok();
        if let Some((row, value)) = batch.poison {
            if let Some(at) = logits_row(row) {
                self.backend.poke(&mut self.work.logits, at, 0, value)?;
            }
        }
        if batch.want_logits != WantLogits::No {
            outcome.logits = Some(self.backend.download(&self.work.logits)?);
        }
        let sampled: Vec<usize> = (0..rows).filter(|&row| batch.sample[row]).collect();
        let requests = sampled.iter().filter_map(|&row| {
            Some(SampleRow {
                logits_row: logits_row(row)?,
                position: contexts[row] as u32,
                sampling: batch.sampling[row].clone()?,
                allowed: batch.allowed(row, self.limits.vocab_size).map(<[u32]>::to_vec),
            })
        });
        self.sample(&sampled, requests.collect(), &mut outcome)?;
        Ok(outcome)
    }

    fn sample(&mut self, sampled: &[usize], rows: Vec<SampleRow>, outcome: &mut Outcome) -> Result<(), B::Error> {
        let mut samples = self.backend.upload_samples(rows)?;
        self.backend.sample(&mut self.work.logits, &mut samples)?;
        for (&row, drawn) in sampled.iter().zip(self.backend.download_samples(samples)?) {
            match drawn {
                Ok(drawn) => {
                    outcome.tokens[row] = drawn.token as i32;
                    outcome.logprobs[row] = drawn.logprobs;
                }
                Err(fault) => outcome.errors.push((row, fault)),
            }
        }
        Ok(())
    }

    /// Zeroes blocks.
    pub fn zero_blocks(&mut self, ids: &[i64]) -> Result<(), EngineError<B::Error>> {
        let ids = self.blocks(ids)?;
        self.backend.zero_blocks(&mut self.cache, &ids).map_err(EngineError::Backend)
    }

    /// The bytes of blocks, one after another.
    pub fn read_blocks(&self, ids: &[i64]) -> Result<Vec<u8>, EngineError<B::Error>> {
        let ids = self.blocks(ids)?;
        let mut bytes = vec![0; ids.len() * self.block_bytes()];
        self.backend.read_blocks(&self.cache, &ids, &mut bytes).map_err(EngineError::Backend)?;
        Ok(bytes)
    }

    /// Overwrites blocks with bytes that [`Self::read_blocks`] gave.
    pub fn write_blocks(&mut self, ids: &[i64], bytes: &[u8]) -> Result<(), EngineError<B::Error>> {
        let ids = self.blocks(ids)?;
        let want = ids.len() * self.block_bytes();
        if bytes.len() != want {
            let fault = format!("has {} bytes, {} blocks need {want}", bytes.len(), ids.len());
            return Err(EngineError::Argument { field: "buffer", fault });
        }
        self.backend.write_blocks(&mut self.cache, &ids, bytes).map_err(EngineError::Backend)
    }

    fn blocks(&self, ids: &[i64]) -> Result<Vec<u32>, EngineError<B::Error>> {
        let mut seen = std::collections::HashSet::new();
        let count = self.limits.block_count;
        ids.iter()
            .enumerate()
            .map(|(place, &id)| {
                if usize::try_from(id).is_ok_and(|id| id < count) && seen.insert(id) {
                    return Ok(id as u32);
                }
                let fault = format!("entry {place} is {id}, must be 0 to {} and occur once", count - 1);
                Err(EngineError::Argument { field: "ids", fault })
            })
            .collect()
    }
}

fn in_range<E>(field: &'static str, value: usize, high: usize) -> Result<(), EngineError<E>> {
    match value {
        1.. if value <= high => Ok(()),
        _ => Err(EngineError::Argument { field, fault: format!("is {value}, must be 1 to {high}") }),
    }
}

/// Tokens whose logits are computed, ascending.
fn wanted_logits(batch: &Batch, plan: &StepPlan) -> Vec<u32> {
    if batch.want_logits == WantLogits::All {
        return (0..plan.tokens.len() as u32).collect();
    }
    let wants = |row: usize| batch.sample[row] || batch.want_logits == WantLogits::Last;
    let rows = plan.rows.iter().enumerate().filter(|(row, _)| wants(*row));
    rows.map(|(_, r)| (r.first_token + r.query_len - 1) as u32).collect()
}
