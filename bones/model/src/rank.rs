//! One rank: a device with its share of the model and of the cache.

use crate::backend::{Backend, CacheShape, SampleRow};
use crate::batch::{Batch, Limits, StepPlan, ToSample, WantLogits};
use crate::decoder::{Decoder, Workspace};
use crate::model::Model;
use crate::parallel::Shard;
use crate::sampler::{Drawn, RowFault};
use std::sync::Arc;

/// A checked step, as every rank takes it.
pub(crate) struct Work {
    pub plan: Arc<StepPlan>,
    /// Tokens whose logits are computed, ascending.
    pub wanted: Vec<u32>,
}

/// What the sampling rank does with the logits.
pub(crate) struct Finish {
    rows: Vec<SampleRow>,
    /// Row of the logits and value: a test's fault.
    poison: Option<(usize, f32)>,
    returns_logits: bool,
}

/// What it gives back.
pub(crate) struct Finished {
    /// One for each sampled row, in order.
    pub drawn: Vec<Result<Drawn, RowFault>>,
    pub logits: Option<Vec<f32>>,
}

/// A device with its share.
pub(crate) struct Rank<B: Backend> {
    backend: B,
    decoder: Decoder<B>,
    work: Workspace<B>,
    cache: B::Cache,
}

impl Work {
    pub fn new(batch: &Batch, plan: StepPlan) -> Self {
        let wants = |row: usize| batch.sample[row] || batch.want_logits == WantLogits::Last;
        let wanted = if batch.want_logits == WantLogits::All {
            (0..plan.tokens.len() as u32).collect()
        } else {
            let rows = plan.rows.iter().enumerate().filter(|(row, _)| wants(*row));
            rows.map(|(_, row)| row.last_token() as u32).collect()
        };
        Self { plan: Arc::new(plan), wanted }
    }
}

impl Finish {
    /// `allowed` is the mask of [`Batch::allowed_mask`].
    pub fn new(batch: &ToSample, work: &Work, limits: &Limits, allowed: Option<&[u32]>) -> Self {
        let words = limits.vocab_size.div_ceil(32);
        let logits_row = |row: usize| work.wanted.binary_search(&(work.plan.rows[row].last_token() as u32)).ok();
        let sampled = (0..work.plan.rows.len()).filter(|&row| batch.sample[row]);
        let rows = sampled.filter_map(|row| {
            // Neither lacks: a sampled row's last token is wanted, and the plan proved that it has parameters.
            Some(SampleRow {
                logits_row: logits_row(row)?,
                position: work.plan.rows[row].context_len as u32,
                sampling: batch.sampling[row].clone()?,
                allowed: allowed.map(|mask| mask[row * words..(row + 1) * words].to_vec()),
            })
        });
        Self {
            rows: rows.collect(),
            poison: batch.poison.and_then(|(row, value)| Some((logits_row(row)?, value))),
            returns_logits: batch.want_logits != WantLogits::No,
        }
    }
}

impl<B: Backend> Rank<B> {
    pub fn load(backend: B, model: &Model, shard: &Shard, shape: &CacheShape) -> Result<Self, B::Error> {
        Ok(Self {
            decoder: Decoder::load(&backend, model, shard)?,
            work: Workspace::new(&backend, model, shard)?,
            cache: backend.cache(shape)?,
            backend,
        })
    }

    /// Executes the rank's part of a step; the sampling rank keeps the logits.
    pub fn advance(&mut self, work: &Work) -> Result<(), B::Error> {
        let Self { backend, decoder, .. } = self;
        let step = backend.upload_step(Arc::clone(&work.plan), decoder.ropes())?;
        decoder.advance(backend, (&step, &work.plan), &mut self.work, &mut self.cache)?;
        if work.wanted.is_empty() { Ok(()) } else { decoder.head(backend, &work.wanted, &mut self.work) }
    }

    /// Samples from the logits of the last [`Self::advance`], on the sampling rank.
    pub fn finish(&mut self, finish: Finish) -> Result<Finished, B::Error> {
        let Self { backend, work, .. } = self;
        let logits = work.logits();
        if let Some((row, value)) = finish.poison {
            backend.poke(logits, row, 0, value)?;
        }
        let returned = finish.returns_logits.then(|| backend.download(logits)).transpose()?;
        if finish.rows.is_empty() {
            return Ok(Finished { drawn: Vec::new(), logits: returned });
        }
        let mut samples = backend.upload_samples(finish.rows)?;
        backend.sample(logits, &mut samples)?;
        Ok(Finished { drawn: backend.download_samples(samples)?, logits: returned })
    }

    pub fn block_bytes(&self) -> usize {
        self.backend.block_bytes(&self.cache)
    }

    pub fn zero_blocks(&mut self, ids: &[u32]) -> Result<(), B::Error> {
        self.backend.zero_blocks(&mut self.cache, ids)
    }

    pub fn read_blocks(&self, ids: &[u32]) -> Result<Vec<u8>, B::Error> {
        let mut bytes = vec![0; ids.len() * self.block_bytes()];
        self.backend.read_blocks(&self.cache, ids, &mut bytes)?;
        Ok(bytes)
    }

    pub fn write_blocks(&mut self, ids: &[u32], bytes: &[u8]) -> Result<(), B::Error> {
        self.backend.write_blocks(&mut self.cache, ids, bytes)
    }
}
