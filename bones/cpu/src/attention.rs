//! Attention of a whole step, split into tasks.

use crate::cache::Pages;
use crate::grid::{Tile, grid};
use crate::kernels::AttendTile;
use crate::pool::Pool;
use crate::simd::{Element, Isa, LANES};
use std::cell::RefCell;
use tie_bones_model::batch::{RowPlan, StepPlan};

/// Tokens of a sequence that one task takes.
const TOKENS: usize = 16;
/// Rows that share the reading of the cache.
const ROWS: usize = 4;

/// Sizes of the heads.
#[derive(Clone, Copy)]
pub struct Heads {
    /// Query heads that share a key head.
    pub group: usize,
    /// Elements of a head.
    pub dim: usize,
}

#[derive(Default)]
struct Scratch {
    q: Vec<f32>,
    limits: Vec<usize>,
    scores: Vec<f32>,
    out: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// `out[t, h] = softmax(q[t, h] · k / sqrt(dim)) · v` over the positions up to t of t's sequence.
pub fn attend<E: Element>(
    (pool, isa): (&Pool, Isa),
    plan: &StepPlan,
    (pages, layer): (&Pages<E>, usize),
    heads: Heads,
    q: &[f32],
    out: &mut [f32],
) {
    let width = out.len() / plan.tokens.len();
    let cuts: Vec<usize> = plan
        .rows
        .iter()
        .flat_map(|r| (r.first_token..r.first_token + r.query_len).step_by(TOKENS))
        .chain([plan.tokens.len()])
        .collect();
    grid(pool, out, width, &cuts, heads.group * heads.dim, &|tile| {
        let sequence = plan.rows.partition_point(|r| r.first_token <= tile.rows().start) - 1;
        let row = plan.rows[sequence];
        let blocks = &plan.tables[row.first_block..];
        let head = tile.columns().start / (heads.group * heads.dim);
        let attend = |s: &mut Scratch| {
            isa.run(AttendTile {
                q: &s.q,
                limits: &s.limits,
                blocks,
                cache: pages.layer(layer, head),
                scores: &mut s.scores,
                out: &mut s.out,
            });
        };
        SCRATCH.with_borrow_mut(|scratch| run_tile(scratch, tile, row, heads, (q, width), &attend));
    });
}

/// Gathers queries four at a time, attends them and spreads the results.
fn run_tile(
    scratch: &mut Scratch,
    tile: &mut Tile<'_>,
    row: RowPlan,
    heads: Heads,
    (q, width): (&[f32], usize),
    attend: &dyn Fn(&mut Scratch),
) {
    let Heads { group, dim } = heads;
    let (tokens, first_column) = (tile.rows(), tile.columns().start);
    let scale = 1.0 / (dim as f32).sqrt();
    let padded = dim.next_multiple_of(LANES);
    let place = |index: usize| (tokens.start + index / group, index % group);
    let total = tokens.len() * group;
    for first in (0..total).step_by(ROWS) {
        let part = first..total.min(first + ROWS);
        scratch.q.clear();
        scratch.limits.clear();
        for (token, head) in part.clone().map(place) {
            let query = &q[token * width + first_column + head * dim..][..dim];
            scratch.q.extend(query.iter().map(|x| x * scale));
            scratch.limits.push(row.context_len - row.query_len + token - row.first_token + 1);
        }
        scratch.out.resize(ROWS * padded, 0.0);
        attend(scratch);
        for ((token, head), result) in part.map(place).zip(scratch.out.chunks_exact(padded)) {
            tile.row(token)[head * dim..(head + 1) * dim].copy_from_slice(&result[..dim]);
        }
    }
}
