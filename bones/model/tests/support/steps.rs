//! Engines over naive backends, and the batches that tests run on them.

use super::naive::{Fault, Naive, NaiveError};
use super::packing::Rng;
use super::samples::{Adapter, Sample};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tie_bones_model::backend::KvDtype;
use tie_bones_model::batch::{Batch, WantLogits};
use tie_bones_model::engine::{Engine, EngineError, EngineOptions};

pub const OPTIONS: EngineOptions = EngineOptions {
    block_count: 32,
    block_size_tokens: 4,
    kv_dtype: KvDtype::F32,
    tensor_parallel: 1,
    pipeline_parallel: 1,
    fault_injection: true,
};

pub type Refusal = EngineError<NaiveError>;

/// A sequence of a test: its tokens, how many of them are new in this step, its adapter.
#[derive(Clone)]
pub struct Sequence {
    pub tokens: Vec<i32>,
    pub new: usize,
    pub adapter: i32,
}

pub fn engine(sample: &Sample, adapters: &[Adapter], tensor: usize, pipeline: usize) -> Engine<Naive> {
    failing(sample, adapters, (tensor, pipeline), |_| None).unwrap()
}

/// An engine whose ranks fail as told.
pub fn failing(
    sample: &Sample,
    adapters: &[Adapter],
    (tensor_parallel, pipeline_parallel): (usize, usize),
    fault: impl Fn(usize) -> Option<Fault>,
) -> Result<Engine<Naive>, Refusal> {
    let (model, images) = sample.model(adapters);
    let images = Arc::new(images);
    let options = EngineOptions { tensor_parallel, pipeline_parallel, ..OPTIONS };
    Engine::new(&model, &options, |link| {
        let fault = fault(link.place().rank());
        Ok(Naive { images: Arc::clone(&images), link, fault, operations: Arc::new(AtomicUsize::new(0)) })
    })
}

pub fn sequence(seed: u64, len: usize, adapter: i32) -> Sequence {
    let mut rng = Rng(seed);
    Sequence { tokens: (0..len).map(|_| (rng.bits() % 50) as i32).collect(), new: len, adapter }
}

/// One step of sequences, the i-th of which has blocks 8 i to 8 i + 7; every row is sampled greedily.
pub fn batch(sequences: &[Sequence]) -> Batch {
    let mut batch = Batch {
        sample: vec![true; sequences.len()],
        sampling: vec![Some(Arc::default()); sequences.len()],
        block_table_offsets: vec![0],
        adapters: Some(sequences.iter().map(|s| s.adapter).collect()),
        want_logits: WantLogits::All,
        ..Batch::default()
    };
    for (index, Sequence { tokens, new, .. }) in sequences.iter().enumerate() {
        batch.token_ids.extend(&tokens[tokens.len() - new..]);
        batch.query_lens.push(*new as i32);
        batch.context_lens.push(tokens.len() as i32);
        let blocks = tokens.len().div_ceil(OPTIONS.block_size_tokens) as i32;
        batch.block_tables.extend((0..blocks).map(|block| 8 * index as i32 + block));
        batch.block_table_offsets.push(batch.block_tables.len() as i32);
    }
    batch
}

/// All logits of one step.
pub fn logits(engine: &mut Engine<Naive>, sequences: &[Sequence]) -> Vec<f32> {
    engine.forward(&batch(sequences)).unwrap().logits.unwrap()
}

/// The largest difference, relative to the largest of the wanted numbers.
pub fn difference(got: &[f32], want: impl IntoIterator<Item = f64>) -> f64 {
    let want: Vec<f64> = want.into_iter().collect();
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0_f64, |max, x| max.max(x.abs()));
    got.iter().zip(&want).map(|(x, y)| (f64::from(*x) - y).abs()).fold(0.0, f64::max) / largest
}
