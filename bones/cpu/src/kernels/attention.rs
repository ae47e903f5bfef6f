//! Attention of a few rows to one sequence's cached keys and values, with a running softmax.
//!
//! A row is one query head of one token; rows of a tile share the reading of the cache. Positions are taken in steps of
//! eight panels of keys, and steps in chunks of [`CHUNK`] panels. A chunk's result is put together from its steps, a row's
//! from its chunks, both from the first position on; where a step or a chunk begins depends on nothing but its position.
//! What a row does not see adds exact zeros, as long as it is finite: a NaN that broken weights make reaches other rows of
//! its own sequence. So a row's result depends on its own query and the cache alone, and chunks may be computed apart and
//! merged afterwards.

use crate::cache::Layer;
use crate::kernels::rows::capped;
use crate::kernels::stored::{Bf16, F32, Stored};
use crate::simd::{Kernel, LANES, Simd, Words, exp};
use bytemuck::{cast_slice, cast_slice_mut};
use std::ops::Range;
use tie_bones_model::backend::KvDtype;

/// Most rows of a tile.
pub const ROWS: usize = 8;
/// Panels of keys whose scores are in flight together.
const STEP: usize = 8;
/// Panels of a chunk.
pub const CHUNK: usize = 16;
/// Below every score that occurs; a running maximum begins here.
const FLOOR: f32 = -1e30;

/// What rows have seen so far.
pub struct State<'a> {
    /// Running maximum of each row.
    pub highest: &'a mut [f32],
    /// Sums of the shares of each row, not yet added over the lanes.
    pub sum: &'a mut [[f32; LANES]],
    /// Sums of values `[rows][dimensions, padded to whole panels]`.
    pub values: &'a mut [[f32; LANES]],
}

/// Numbers that the state of `rows` rows takes, for heads of `panels` panels.
pub fn state_len(rows: usize, panels: usize) -> usize {
    rows * (1 + LANES + panels * LANES)
}

impl<'a> State<'a> {
    /// A state in a buffer of [`state_len`] numbers.
    #[inline(always)]
    pub fn over(buffer: &'a mut [f32], rows: usize) -> Self {
        let (highest, vectors) = buffer.split_at_mut(rows);
        let (sum, values) = cast_slice_mut(vectors).split_at_mut(rows);
        Self { highest, sum, values }
    }

    /// Nothing seen.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.highest.fill(FLOOR);
        self.sum.fill([0.0; LANES]);
        self.values.fill([0.0; LANES]);
    }
}

/// Sees one chunk of a sequence.
pub struct SeeChunk<'a> {
    /// Queries as words `[words of a head][rows]`, scaled.
    pub q: &'a [u32],
    /// Positions that each row sees.
    pub seen: &'a [Range<usize>],
    /// The sequence's blocks.
    pub blocks: &'a [u32],
    /// One layer and head of the cache.
    pub cache: Layer<'a>,
    /// Its type.
    pub dtype: KvDtype,
    /// Bound of the scores.
    pub softcap: Option<f32>,
    /// Panels of keys, counted over all blocks.
    pub panels: Range<usize>,
    /// Cleared, then what the chunk gave.
    pub state: State<'a>,
}

impl Kernel for SeeChunk<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.dtype {
            KvDtype::F32 => self.of_type::<S, F32>(s),
            KvDtype::Bf16 => self.of_type::<S, Bf16>(s),
        }
    }
}

// Loops, not closures: what the compiler does not inline here would lack the instruction set.
impl SeeChunk<'_> {
    #[inline(always)]
    fn of_type<S: Simd, T: Stored>(mut self, s: S) {
        self.state.clear();
        match self.seen.len() {
            1 => self.steps::<S, T, 1>(s),
            2 => self.steps::<S, T, 2>(s),
            3 => self.steps::<S, T, 3>(s),
            4 => self.steps::<S, T, 4>(s),
            _ => self.steps::<S, T, ROWS>(s),
        }
    }

    #[inline(always)]
    fn steps<S: Simd, T: Stored, const R: usize>(&mut self, s: S) {
        for first in self.panels.clone().step_by(STEP) {
            let panels = first..self.panels.end.min(first + STEP);
            let mut shares = [[[0.0; LANES]; STEP]; R];
            for (place, panel) in panels.clone().enumerate() {
                self.score::<S, T, R>(s, panel, place, &mut shares);
            }
            let kept = self.raise::<S, R>(s, &shares, panels.len());
            let mut words = [[[0; LANES]; R]; STEP];
            for row in 0..R {
                self.share(s, row, kept[row], &mut shares[row][..panels.len()]);
                for (place, share) in shares[row][..panels.len()].iter().enumerate() {
                    words[place][row] = T::words(s, share);
                }
            }
            self.weigh::<S, T, R>(s, panels, &words, &kept);
        }
    }

    /// Scores of one panel, what a row does not see being at the floor.
    #[inline(always)]
    fn score<S: Simd, T: Stored, const R: usize>(
        &self,
        s: S,
        panel: usize,
        place: usize,
        scores: &mut [[[f32; LANES]; STEP]; R],
    ) {
        let counts = self.cache.counts;
        let (block, part) = (panel / counts.slot_panels, panel % counts.slot_panels);
        let keys = self.cache.keys(self.blocks[block], part);
        let q: &[[u32; R]] = cast_slice(self.q);
        let mut sums = [s.splat(0.0); R];
        for (key, q) in keys.iter().zip(q) {
            let key = s.words(key);
            for row in 0..R {
                sums[row] = T::dot(s, sums[row], key, q[row]);
            }
        }
        let position = block * counts.slots + part * LANES;
        let valid = LANES.min(counts.slots - part * LANES);
        for row in 0..R {
            if let Some(cap) = self.softcap {
                sums[row] = capped(s, sums[row], cap);
            }
            let scores = &mut scores[row][place];
            s.store(sums[row], scores);
            let seen = &self.seen[row];
            let first = seen.start.saturating_sub(position).min(LANES);
            let end = seen.end.saturating_sub(position).min(valid);
            if first > 0 || end < LANES {
                scores[..first].fill(FLOOR);
                scores[end.max(first)..].fill(FLOOR);
            }
        }
    }

    /// Raises the running maxima to the scores', and gives what each row's sums so far are worth under the new one.
    #[inline(always)]
    fn raise<S: Simd, const R: usize>(
        &mut self,
        s: S,
        scores: &[[[f32; LANES]; STEP]; R],
        panels: usize,
    ) -> [f32; LANES] {
        let mut kept = [0.0; LANES];
        for row in 0..R {
            let before = self.state.highest[row];
            let mut highest = s.splat(before);
            for scores in &scores[row][..panels] {
                highest = s.max(s.load(scores), highest);
            }
            self.state.highest[row] = s.highest(highest);
            kept[row] = before - self.state.highest[row];
        }
        s.store(exp(s, s.load(&kept)), &mut kept);
        kept
    }

    /// Turns a row's scores into shares of its maximum.
    #[inline(always)]
    fn share<S: Simd>(&mut self, s: S, row: usize, kept: f32, scores: &mut [[f32; LANES]]) {
        let lowest = s.splat(-self.state.highest[row]);
        let mut sum = s.mul(s.load(&self.state.sum[row]), s.splat(kept));
        for scores in scores {
            let score = s.load(scores);
            let share = s.above(score, s.splat(FLOOR), exp(s, s.add(score, lowest)));
            s.store(share, scores);
            sum = s.add(sum, share);
        }
        s.store(sum, &mut self.state.sum[row]);
    }

    /// Adds the values by their shares.
    #[inline(always)]
    fn weigh<S: Simd, T: Stored, const R: usize>(
        &mut self,
        s: S,
        panels: Range<usize>,
        shares: &[[[u32; LANES]; R]; STEP],
        kept: &[f32; LANES],
    ) {
        let counts = self.cache.counts;
        let mut values: [(&[Words], usize); STEP] = [(&[], 0); STEP];
        for (panel, values) in panels.zip(&mut values) {
            let (block, first) = (panel / counts.slot_panels, panel % counts.slot_panels * T::WORDS);
            *values = (&self.cache.values(self.blocks[block])[first..], T::WORDS.min(counts.slot_words - first));
        }
        for dim in 0..counts.dim_panels {
            let mut sums = [s.splat(0.0); R];
            for row in 0..R {
                let before = s.load(&self.state.values[row * counts.dim_panels + dim]);
                sums[row] = s.mul(before, s.splat(kept[row]));
            }
            for ((values, len), shares) in values.iter().zip(shares) {
                if *len == T::WORDS {
                    // The usual case, with a length that the compiler knows.
                    let values = &values[dim * counts.slot_words..][..T::WORDS];
                    for word in 0..T::WORDS {
                        add_word::<S, T, R>(s, &values[word], shares, word, &mut sums);
                    }
                } else {
                    for word in 0..*len {
                        add_word::<S, T, R>(s, &values[dim * counts.slot_words + word], shares, word, &mut sums);
                    }
                }
            }
            for row in 0..R {
                s.store(sums[row], &mut self.state.values[row * counts.dim_panels + dim]);
            }
        }
    }
}

/// Adds one word of values by each row's shares.
#[inline(always)]
fn add_word<S: Simd, T: Stored, const R: usize>(
    s: S,
    value: &Words,
    shares: &[[u32; LANES]; R],
    word: usize,
    sums: &mut [S::V; R],
) {
    let value = s.words(value);
    for row in 0..R {
        sums[row] = T::dot(s, sums[row], value, shares[row][word]);
    }
}

#[inline(always)]
fn exp_of<S: Simd>(s: S, x: f32) -> f32 {
    let mut lanes = [0.0; LANES];
    s.store(exp(s, s.splat(x)), &mut lanes);
    lanes[0]
}

/// Merges what a later chunk gave into what the earlier ones gave.
pub struct Merge<'a, 'b, 'c> {
    /// The earlier ones.
    pub into: &'b mut State<'a>,
    /// The later one.
    pub from: &'b State<'c>,
}

impl Kernel for Merge<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.into.sum.len();
        let panels = self.into.values.len() / rows;
        for row in 0..rows {
            let (before, later) = (self.into.highest[row], self.from.highest[row]);
            let highest = if later > before { later } else { before };
            let (kept, added) = (exp_of(s, before - highest), exp_of(s, later - highest));
            let before = s.mul(s.load(&self.into.sum[row]), s.splat(kept));
            s.store(s.fma(s.load(&self.from.sum[row]), s.splat(added), before), &mut self.into.sum[row]);
            self.into.highest[row] = highest;
            let values = row * panels..(row + 1) * panels;
            for (into, from) in self.into.values[values.clone()].iter_mut().zip(&self.from.values[values]) {
                let sum = s.fma(s.load(from), s.splat(added), s.mul(s.load(into), s.splat(kept)));
                s.store(sum, into);
            }
        }
    }
}
