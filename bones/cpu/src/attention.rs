//! Attention of a whole step, split into tasks.
//!
//! A task is a key head and some tokens of a sequence; it sees the sequence chunk by chunk. Where there are too few of
//! them to go round, as when one sequence decodes, the chunks of its rows are seen apart and merged in order: the same
//! sums in the same order.

use crate::cache::Pages;
use crate::grid::{Tile, every, grid};
use crate::kernels::{CHUNK, Merge, PrepareTile, ROWS, SeeChunk, State, most_rows, state_len, tile_height};
use crate::lines::{place, room};
use crate::operand::Form;
use crate::pool::Pool;
use crate::simd::{Isa, LANES};
use std::cell::RefCell;
use std::ops::Range;
use tie_bones_model::backend::{Attention, Heads, KvDtype};
use tie_bones_model::batch::{RowPlan, StepPlan};

/// Tokens of a sequence that one task takes.
const TOKENS: usize = 16;

/// Everything that the tasks of a step share.
#[derive(Clone, Copy)]
pub struct Work<'a> {
    /// Threads.
    pub pool: &'a Pool,
    /// Their instructions.
    pub isa: Isa,
    /// The step.
    pub plan: &'a StepPlan,
    /// The cache, and which of its layers.
    pub cache: (&'a Pages, usize),
    /// Heads of the queries and of the cache.
    pub heads: Heads,
    /// How the layer attends.
    pub attention: &'a Attention,
    /// Rows `[q | k | v]` and their width.
    pub qkv: (&'a [f32], usize),
}

/// One query head of one token.
#[derive(Clone, Copy)]
struct Query {
    token: usize,
    head: usize,
}

/// Up to [`most_rows`] queries that share a sequence and a key head.
struct Queries<'a> {
    work: &'a Work<'a>,
    blocks: &'a [u32],
    kv_head: usize,
    rows: Vec<Query>,
    /// Their words, and what each sees.
    words: Vec<u32>,
    /// Where the words are, on a cache line.
    place: Range<usize>,
    seen: Vec<Range<usize>>,
}

#[derive(Default)]
struct Scratch {
    total: Vec<f32>,
    chunk: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// `out[t, h] = softmax(q[t, h] · k · scale) · v` over the positions up to t of t's sequence, within the window.
pub fn attend(work: &Work<'_>, out: &mut [f32]) {
    let (plan, heads) = (work.plan, work.heads);
    let width = heads.query * heads.dim;
    let few = plan.rows.len() * heads.kv < 4 * work.pool.threads() && work.pool.threads() > 1;
    let apart = |row: &RowPlan| few && row.query_len * work.group() <= ROWS;
    let cuts = |row: &RowPlan| (row.first_token..row.first_token + row.query_len).step_by(TOKENS);
    let down: Vec<usize> = plan.rows.iter().flat_map(cuts).chain([plan.tokens.len()]).collect();
    let over = every(width, work.group() * heads.dim);
    grid(work.pool, out, width, [&down, &over], &|tile| {
        let row = work.row_of(tile.rows().start);
        if !apart(&row) {
            let head = tile.columns().start / (work.group() * heads.dim);
            whole(work, row, head, tile);
        }
    });
    for row in plan.rows.iter().filter(|row| apart(row)) {
        let part = &mut out[row.first_token * width..(row.first_token + row.query_len) * width];
        by_chunks(work, *row, part);
    }
}

impl<'a> Work<'a> {
    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.heads.query / self.heads.kv
    }

    fn row_of(&self, token: usize) -> RowPlan {
        self.plan.rows[self.plan.rows.partition_point(|row| row.first_token <= token) - 1]
    }

    /// Panels of values of a head.
    fn dim_panels(&self) -> usize {
        self.heads.dim.div_ceil(LANES)
    }

    fn queries(&'a self, row: RowPlan, kv_head: usize, rows: Vec<Query>) -> Queries<'a> {
        let Attention { scale, window, .. } = *self.attention;
        let (qkv, width) = self.qkv;
        let dim = self.heads.dim;
        let height = tile_height(rows.len());
        let (mut x, mut seen) = (Vec::with_capacity(height * dim), Vec::with_capacity(height));
        for query in &rows {
            let q = &qkv[query.token * width + query.head * dim..][..dim];
            x.extend(q.iter().map(|q| q * scale));
            let end = row.context_len - row.query_len + query.token - row.first_token + 1;
            seen.push(window.map_or(0, |window| end.saturating_sub(window))..end);
        }
        seen.resize(height, 0..0);
        let form = match self.cache.0.shape().dtype {
            KvDtype::F32 => Form::F32,
            KvDtype::Bf16 => Form::Bf16,
        };
        let mut words = Vec::new();
        let place = place(&mut words, height * form.words(dim));
        let scratch = &mut Vec::new();
        let tile = &mut words[place.clone()];
        self.isa.run(PrepareTile { form, x: &x, cols: dim, norm: None, scratch, words: tile, height });
        Queries { work: self, blocks: &self.plan.tables[row.first_block..], kv_head, rows, words, place, seen }
    }
}

impl Queries<'_> {
    /// Chunks that any row sees.
    fn chunks(&self) -> Range<usize> {
        let counts = self.work.cache.0.layer(0, 0).counts;
        let panel = |position: usize| position / counts.slots * counts.slot_panels + position % counts.slots / LANES;
        let used = self.seen.iter().filter(|seen| !seen.is_empty());
        let first = used.clone().map(|seen| panel(seen.start)).min().unwrap_or(0);
        let last = used.map(|seen| panel(seen.end - 1)).max().unwrap_or(0);
        first / CHUNK..last / CHUNK + 1
    }

    fn see(&self, chunk: usize, state: State<'_>) {
        let (pages, layer) = self.work.cache;
        let cache = pages.layer(layer, self.kv_head);
        let counts = cache.counts;
        let end = self.seen.iter().map(|seen| seen.end).max().unwrap_or(0);
        let panels = end.div_ceil(counts.slots) * counts.slot_panels;
        self.work.isa.run(SeeChunk {
            q: &self.words[self.place.clone()],
            head_dim: self.work.heads.dim,
            seen: &self.seen,
            blocks: self.blocks,
            cache,
            dtype: pages.shape().dtype,
            softcap: self.work.attention.softcap,
            panels: chunk * CHUNK..panels.min((chunk + 1) * CHUNK),
            state,
        });
    }

    /// Writes the results of rows that have seen everything.
    fn finish(&self, state: &State<'_>, mut put: impl FnMut(Query, &mut dyn Iterator<Item = f32>)) {
        let panels = self.work.dim_panels();
        for (place, query) in self.rows.iter().enumerate() {
            let sum: f32 = state.sum[place].iter().sum();
            let values = state.values[place * panels..(place + 1) * panels].iter().flatten();
            put(*query, &mut values.map(|value| value / sum));
        }
    }
}

/// All queries of some tokens and one key head, a tile at a time.
fn whole(work: &Work<'_>, row: RowPlan, kv_head: usize, tile: &mut Tile<'_>) {
    let (group, dim) = (work.group(), work.heads.dim);
    let (tokens, first_column) = (tile.rows(), tile.columns().start);
    let all: Vec<Query> =
        tokens.flat_map(|token| (0..group).map(move |head| Query { token, head: kv_head * group + head })).collect();
    SCRATCH.with_borrow_mut(|scratch| {
        for rows in all.chunks(most_rows(work.isa, work.cache.0.shape().dtype, dim)) {
            let queries = work.queries(row, kv_head, rows.to_vec());
            let height = queries.seen.len();
            let len = state_len(height, work.dim_panels());
            let (total, part) = (room(&mut scratch.total, len), room(&mut scratch.chunk, len));
            let mut total = State::over(total, height);
            total.clear();
            for chunk in queries.chunks() {
                queries.see(chunk, State::over(part, height));
                let from = State::over(part, height);
                work.isa.run(Merge { into: &mut total, from: &from });
            }
            queries.finish(&total, |query, values| {
                let out = &mut tile.row(query.token)[query.head * dim - first_column..][..dim];
                out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
            });
        }
    });
}

/// The few queries of one sequence, every head and chunk a task.
fn by_chunks(work: &Work<'_>, row: RowPlan, out: &mut [f32]) {
    let (group, heads) = (work.group(), work.heads);
    let all: Vec<Queries<'_>> = (0..heads.kv)
        .map(|kv_head| {
            let tokens = row.first_token..row.first_token + row.query_len;
            let rows =
                tokens.flat_map(|token| (0..group).map(move |head| Query { token, head: kv_head * group + head }));
            work.queries(row, kv_head, rows.collect())
        })
        .collect();
    let (chunks, height) = (all[0].chunks(), all[0].seen.len());
    let len = state_len(height, work.dim_panels());
    let mut parts = Vec::new();
    let parts = room(&mut parts, all.len() * chunks.len() * len);
    let down = every(all.len() * chunks.len(), 1);
    grid(work.pool, parts, len, [&down, &[0, len]], &|tile| {
        let place = tile.rows().start;
        let (queries, chunk) = (&all[place / chunks.len()], chunks.start + place % chunks.len());
        queries.see(chunk, State::over(tile.row(place), height));
    });
    let mut total = Vec::new();
    let total = room(&mut total, len);
    for (queries, parts) in all.iter().zip(parts.chunks_exact_mut(len * chunks.len())) {
        let mut total = State::over(total, height);
        total.clear();
        for part in parts.chunks_exact_mut(len) {
            work.isa.run(Merge { into: &mut total, from: &State::over(part, height) });
        }
        queries.finish(&total, |query, values| {
            let at = (query.token - row.first_token) * heads.query * heads.dim + query.head * heads.dim;
            out[at..at + heads.dim].iter_mut().zip(values).for_each(|(out, value)| *out = value);
        });
    }
}
