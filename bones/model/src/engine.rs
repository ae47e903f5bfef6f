//! One model and its cache over one or many ranks: executes batches.

use crate::backend::{Backend, CacheShape, KvDtype};
use crate::batch::{Batch, BatchError, Limits, ToSample};
use crate::crew::Crew;
use crate::exchange::Link;
use crate::model::Model;
use crate::parallel::shards;
use crate::rank::{Finish, Finished, Rank, Work};
use crate::sampler::RowFault;
use std::sync::Arc;

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
    #[error("engine rank {rank}: {error}")]
    Backend {
        /// Which rank.
        rank: usize,
        /// What its device says.
        error: E,
    },
    /// A defect: a rank panicked.
    #[error("engine rank {rank}: internal fault")]
    Panicked {
        /// Which rank.
        rank: usize,
    },
    /// A rank failed in an earlier call.
    #[error("engine is unusable: rank {rank} failed earlier")]
    Failed {
        /// Which rank.
        rank: usize,
    },
    /// A rank's thread could not be started.
    #[error("engine rank {rank}: cannot start its thread: {source}")]
    Thread {
        /// Which rank.
        rank: usize,
        /// Why.
        source: std::io::Error,
    },
}

/// Size and type of the cache, ranks, and what tests may do.
#[derive(Clone, Copy, Debug)]
pub struct EngineOptions {
    /// Blocks of the KV cache.
    pub block_count: usize,
    /// Tokens of a block, at most 1024.
    pub block_size_tokens: usize,
    /// Type of keys and values.
    pub kv_dtype: KvDtype,
    /// Ranks that share each layer.
    pub tensor_parallel: usize,
    /// Stages that share the layers.
    pub pipeline_parallel: usize,
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

/// A model ready to execute. After a rank has failed it refuses every call.
pub struct Engine<B: Backend> {
    pub(crate) crew: Crew<B>,
    pub(crate) limits: Limits,
    /// Bytes of a block on each rank.
    pub(crate) block_bytes: Vec<usize>,
    /// The rank that samples.
    sampler: usize,
    /// What was advanced and not yet sampled.
    advanced: Option<(ToSample, Arc<Work>)>,
}

impl<E> EngineError<E> {
    /// Whether the call was wrong rather than the engine.
    pub fn is_callers_fault(&self) -> bool {
        matches!(self, Self::Batch(_) | Self::Argument { .. })
    }
}

impl<B: Backend> Engine<B> {
    /// Makes a backend for each rank, loads its share of the weights onto it and allocates its cache.
    pub fn new(
        model: &Model,
        options: &EngineOptions,
        mut backend: impl FnMut(Link) -> Result<B, B::Error>,
    ) -> Result<Self, EngineError<B::Error>> {
        let limits = limits(model, options)?;
        let (tensor, pipeline) = (options.tensor_parallel, options.pipeline_parallel);
        let shards = shards(&model.description, tensor, pipeline)
            .map_err(|error| EngineError::Argument { field: error.field, fault: error.fault })?;
        let mut ranks = Vec::new();
        for (shard, link) in shards.iter().zip(Link::connect(pipeline, tensor)) {
            let shape = CacheShape {
                block_count: options.block_count,
                block_size_tokens: options.block_size_tokens,
                layer_count: shard.layers.len(),
                kv_heads: shard.heads.kv,
                head_dim: shard.heads.dim,
                dtype: options.kv_dtype,
            };
            let rank = backend(link.clone()).and_then(|backend| Rank::load(backend, model, shard, &shape));
            let rank = rank.map_err(|error| EngineError::Backend { rank: shard.place.rank(), error })?;
            ranks.push((link, rank));
        }
        let block_bytes = ranks.iter().map(|(_, rank)| rank.block_bytes()).collect();
        Ok(Self { crew: Crew::start(ranks)?, limits, block_bytes, sampler: (pipeline - 1) * tensor, advanced: None })
    }

    /// Bytes of one block in [`Self::read_blocks`]: every rank's, in their order.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes.iter().sum()
    }

    /// Executes one step: advances every row, then samples those that ask for it.
    pub fn forward(&mut self, batch: &Batch) -> Result<Outcome, EngineError<B::Error>> {
        self.compute(batch)?;
        self.sample(batch.allowed_mask.as_deref())
    }

    /// The first half of a step: advances every row. Its mask may be found meanwhile: it belongs to [`Self::sample`].
    pub fn advance(&mut self, batch: &Batch) -> Result<(), EngineError<B::Error>> {
        if batch.allowed_mask.is_some() {
            return Err(argument("allowed_mask", "belongs to the call that samples"));
        }
        self.compute(batch)
    }

    /// The second half: samples, under a mask of the shape of [`Batch::allowed_mask`].
    pub fn sample(&mut self, allowed: Option<&[u32]>) -> Result<Outcome, EngineError<B::Error>> {
        let Some((batch, work)) = self.advanced.take() else {
            return Err(argument("sample", "follows a step that was advanced, once"));
        };
        let words = batch.sample.len() * self.limits.vocab_size.div_ceil(32);
        if allowed.is_some_and(|mask| mask.len() != words) {
            return Err(argument("allowed_mask", format!("must have {words} words")));
        }
        let mut finish = (!work.wanted.is_empty()).then(|| Finish::new(&batch, &work, &self.limits, allowed));
        if finish.is_none() {
            return Ok(outcome(&batch, None));
        }
        let answers = self.crew.run(|rank| {
            let finish = finish.take_if(|_| rank == self.sampler);
            move |rank: &mut Rank<B>| finish.map(|finish| rank.finish(finish)).transpose()
        })?;
        Ok(outcome(&batch, answers.into_iter().flatten().next()))
    }

    fn compute(&mut self, batch: &Batch) -> Result<(), EngineError<B::Error>> {
        self.advanced = None;
        let work = Arc::new(Work::new(batch, batch.plan(&self.limits)?));
        self.crew.run(|_| {
            let work = Arc::clone(&work);
            move |rank: &mut Rank<B>| rank.advance(&work)
        })?;
        self.advanced = Some((batch.to_sample(), work));
        Ok(())
    }
}

fn argument<E>(field: &'static str, fault: impl Into<String>) -> EngineError<E> {
    EngineError::Argument { field, fault: fault.into() }
}

fn limits<E>(model: &Model, options: &EngineOptions) -> Result<Limits, EngineError<E>> {
    let EngineOptions { block_count, block_size_tokens, fault_injection, .. } = *options;
    for (field, value, high) in [("block_count", block_count, 1 << 24), ("block_size_tokens", block_size_tokens, 1024)]
    {
        if !(1..=high).contains(&value) {
            return Err(argument(field, format!("is {value}, must be 1 to {high}")));
        }
    }
    Ok(Limits {
        vocab_size: model.description.vocab_size,
        context_length: model.description.context_length,
        block_count,
        block_size_tokens,
        adapter_count: model.adapters.len(),
        fault_injection,
    })
}

fn outcome(batch: &ToSample, finished: Option<Finished>) -> Outcome {
    let rows = batch.sample.len();
    let mut outcome = Outcome { tokens: vec![-1; rows], errors: Vec::new(), logprobs: vec![None; rows], logits: None };
    let Some(Finished { drawn, logits }) = finished else { return outcome };
    outcome.logits = logits;
    let sampled = (0..rows).filter(|&row| batch.sample[row]);
    for (row, drawn) in sampled.zip(drawn) {
        match drawn {
            Ok(drawn) => {
                outcome.tokens[row] = drawn.token as i32;
                outcome.logprobs[row] = drawn.logprobs;
            }
            Err(fault) => outcome.errors.push((row, fault)),
        }
    }
    outcome
}
