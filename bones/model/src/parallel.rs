//! What each rank holds of a model.
//!
//! Pipeline stages take consecutive layers. Tensor ranks of a stage take whole KV heads with the query heads that share
//! them, columns of the MLP in blocks, and panels of the vocabulary; each as evenly as whole units allow, the earlier
//! ranks taking one more. Outputs of attention and MLP are then sums over the tensor ranks, so only the first of them
//! adds the biases there.

use crate::backend::{Heads, LowRank};
use crate::description::Description;
use crate::exchange::Place;
use crate::table::{LinearSpec, Part};
use crate::weights::{BLOCK, MatrixSpec, PANEL};
use std::ops::Range;

/// Most ranks of an engine.
pub const MAX_RANKS: usize = 64;

/// A way to split that the model does not allow.
#[derive(Debug, thiserror::Error)]
#[error("{field} {fault}")]
pub struct ParallelError {
    /// Which parameter.
    pub field: &'static str,
    /// What is wrong with it.
    pub fault: String,
}

/// One rank's share.
#[derive(Clone, Debug)]
pub struct Shard {
    /// Where the rank stands.
    pub place: Place,
    /// Layers of its stage.
    pub layers: Range<usize>,
    /// Key and value heads.
    pub kv_heads: Range<usize>,
    /// Columns of the MLP.
    pub columns: Range<usize>,
    /// Tokens whose logits it computes, where it stands in the last stage.
    pub vocab: Range<usize>,
    /// Number and size of its heads.
    pub heads: Heads,
}

/// The shares of all ranks, in the order of [`Place::all`].
pub fn shards(d: &Description, tensor: usize, pipeline: usize) -> Result<Vec<Shard>, ParallelError> {
    let units = d.intermediate_size.div_ceil(BLOCK);
    let panels = d.vocab_size.div_ceil(PANEL);
    at_most("tensor_parallel", tensor, MAX_RANKS, "of any engine")?;
    at_most("tensor_parallel", tensor, d.kv_heads, "of kv_heads")?;
    at_most("tensor_parallel", tensor, units, "of blocks of intermediate_size")?;
    at_most("tensor_parallel", tensor, panels, "of panels of vocab_size")?;
    at_most("pipeline_parallel", pipeline, d.layer_count, "of layers")?;
    at_most("pipeline_parallel", pipeline, MAX_RANKS / tensor, "beside tensor_parallel")?;
    let group = d.query_heads / d.kv_heads;
    Place::all(pipeline, tensor)
        .map(|place| {
            let even = |count: usize| share(count, place.tensor_rank, tensor);
            let kv_heads = even(d.kv_heads);
            on_border(kv_heads.start * d.head_dim, PANEL, "keys", &place)?;
            on_border(kv_heads.start * group * d.head_dim, BLOCK, "queries", &place)?;
            Ok(Shard {
                place,
                layers: share(d.layer_count, place.stage, pipeline),
                columns: scaled(&even(units), BLOCK, d.intermediate_size),
                vocab: scaled(&even(panels), PANEL, d.vocab_size),
                heads: Heads { query: kv_heads.len() * group, kv: kv_heads.len(), dim: d.head_dim },
                kv_heads,
            })
        })
        .collect()
}

fn at_most(field: &'static str, value: usize, high: usize, what: &str) -> Result<(), ParallelError> {
    match value {
        1.. if value <= high => Ok(()),
        _ => Err(ParallelError { field, fault: format!("is {value}, must be 1 to {high}, the number {what}") }),
    }
}

fn on_border(element: usize, unit: usize, what: &str, place: &Place) -> Result<(), ParallelError> {
    if element % unit == 0 {
        return Ok(());
    }
    let fault = format!(
        "is {}: {what} of rank {} would begin at element {element}, must begin at a multiple of {unit}",
        place.tensor_ranks, place.tensor_rank
    );
    Err(ParallelError { field: "tensor_parallel", fault })
}

/// Of `count` units, those of one of `sharers`.
fn share(count: usize, index: usize, sharers: usize) -> Range<usize> {
    let start = |index: usize| index * (count / sharers) + index.min(count % sharers);
    start(index)..start(index + 1)
}

/// Units as elements; the last one may be cut short.
fn scaled(units: &Range<usize>, size: usize, end: usize) -> Range<usize> {
    units.start * size..(units.end * size).min(end)
}

impl Shard {
    /// The rank's part of a linear layer.
    pub fn linear(&self, part: Part, spec: &LinearSpec) -> LinearSpec {
        let (rows, cols) = self.cut(part);
        let bias = match &rows {
            Some(rows) => spec.bias.map(|bias| bias.part(rows.clone())),
            None => spec.bias.filter(|_| self.place.tensor_rank == 0),
        };
        LinearSpec { weight: cut(&spec.weight, rows, cols), bias }
    }

    /// The rank's part of an adapter's pair.
    pub fn low_rank(&self, part: Part, pair: &LowRank<MatrixSpec>) -> LowRank<MatrixSpec> {
        let (rows, cols) = self.cut(part);
        LowRank { a: cut(&pair.a, None, cols), b: cut(&pair.b, rows, None) }
    }

    /// Outputs or inputs of a matrix that the rank holds; all where absent.
    fn cut(&self, part: Part) -> (Option<Range<usize>>, Option<Range<usize>>) {
        let Heads { query, kv, dim } = self.heads;
        let heads = &self.kv_heads;
        let width = query / kv * dim;
        match part {
            Part::Q => (Some(heads.start * width..heads.end * width), None),
            Part::K | Part::V => (Some(heads.start * dim..heads.end * dim), None),
            Part::O => (None, Some(heads.start * width..heads.end * width)),
            Part::Gate | Part::Up => (Some(self.columns.clone()), None),
            Part::Down => (None, Some(self.columns.clone())),
        }
    }
}

fn cut(spec: &MatrixSpec, rows: Option<Range<usize>>, cols: Option<Range<usize>>) -> MatrixSpec {
    spec.part(rows.unwrap_or(0..spec.stored_rows), cols.unwrap_or(0..spec.stored_cols))
}
