//! Attention of a few rows to one sequence's cached keys and values, with a running softmax.
//!
//! A row is one query head of one token; rows of a tile share the reading of the cache. Positions are taken in steps of
//! eight panels of keys, and steps in chunks of [`CHUNK`] panels. A chunk's result is put together from its steps, a row's
//! from its chunks, both from the first position on; where a step or a chunk begins depends on nothing but its position.
//! What a row does not see adds exact zeros, as long as it is finite: a NaN that broken weights make reaches other rows of
//! its own sequence. So a row's result depends on its own query and the cache alone, and chunks may be computed apart and
//! merged afterwards.

use crate::cache::Layer;
use crate::kernels::attention_state::{FLOOR, State};
use crate::kernels::rows::capped;
use crate::kernels::stored::{Bf16, F32, Stored};
use crate::lines::OnLine;
use crate::operand::{Form, run};
use crate::simd::{Kernel, LANES, Shaped, Simd, Words, exp};
use bytemuck::cast_slice;
use std::ops::Range;
use tie_bones_model::backend::KvDtype;

/// Most rows of a tile on the vector unit, and on the matrix unit.
pub const ROWS: usize = 8;
pub(super) const UNIT_ROWS: usize = 16;
/// Panels of keys whose scores are in flight together.
pub(super) const STEP: usize = 8;
/// Panels of a chunk.
pub const CHUNK: usize = 16;

/// Sees one chunk of a sequence.
pub struct SeeChunk<'a> {
    /// Queries as words, scaled; a tile as [`super::PrepareTile`] writes it.
    pub q: &'a [u32],
    /// Dimensions of a head.
    pub head_dim: usize,
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
        let mut unit = match (s.matrix_unit(), self.dtype) {
            (Some(amx), KvDtype::Bf16) => Some(amx.unit()),
            _ => None,
        };
        let mut unit = unit.as_mut().map(|unit| unit.of_rows(self.seen.len()));
        match self.seen.len() {
            1 => self.steps::<S, T, 1>(s, &mut unit),
            2 => self.steps::<S, T, 2>(s, &mut unit),
            3 => self.steps::<S, T, 3>(s, &mut unit),
            4 => self.steps::<S, T, 4>(s, &mut unit),
            ROWS => self.steps::<S, T, ROWS>(s, &mut unit),
            _ => self.steps::<S, T, UNIT_ROWS>(s, &mut unit),
        }
    }

    #[inline(always)]
    fn steps<S: Simd, T: Stored, const R: usize>(&mut self, s: S, unit: &mut Option<&mut Shaped>) {
        let mut scratch = OnLine(([[[0.0; LANES]; STEP]; R], [[[0; LANES]; R]; STEP]));
        let (shares, words) = (&mut scratch.0.0, &mut scratch.0.1);
        for first in self.panels.clone().step_by(STEP) {
            let panels = first..self.panels.end.min(first + STEP);
            match unit {
                Some(unit) if run(Form::Bf16, self.head_dim, true) > 1 => {
                    self.score_in_tiles(unit, panels.clone(), shares);
                }
                _ => {
                    for (place, panel) in panels.clone().enumerate() {
                        self.score::<S, T, R>(s, panel, place, shares);
                    }
                }
            }
            self.bound(s, panels.clone(), shares);
            let kept = self.raise::<S, R>(s, shares, panels.len());
            for row in 0..R {
                self.share(s, row, kept[row], &mut shares[row][..panels.len()]);
                for (place, share) in shares[row][..panels.len()].iter().enumerate() {
                    words[place][row] = T::words(s, share);
                }
            }
            match unit {
                Some(unit) if self.cache.counts.slots % LANES == 0 => {
                    self.weigh_in_tiles(s, unit, panels, words, &kept);
                }
                _ => self.weigh::<S, T, R>(s, panels, words, &kept),
            }
        }
    }

    /// Where a panel's block lies in the table, and which of its panels it is.
    #[inline(always)]
    pub(super) fn place_of(&self, panel: usize) -> (usize, usize) {
        let counts = self.cache.counts;
        (panel / counts.slot_panels, panel % counts.slot_panels)
    }

    /// Scores of one panel.
    #[inline(always)]
    fn score<S: Simd, T: Stored, const R: usize>(
        &self,
        s: S,
        panel: usize,
        place: usize,
        scores: &mut [[[f32; LANES]; STEP]; R],
    ) {
        let (block, part) = self.place_of(panel);
        let q: &[[u32; R]] = cast_slice(self.q);
        let mut sums = [s.splat(0.0); R];
        for (key, q) in self.cache.keys(self.blocks[block], part).iter().zip(q) {
            let key = s.words(key);
            for row in 0..R {
                sums[row] = T::dot(s, sums[row], key, q[row]);
            }
        }
        for row in 0..R {
            s.store(sums[row], &mut scores[row][place]);
        }
    }

    /// Bounds scores, and puts what a row does not see at the floor.
    #[inline(always)]
    fn bound<S: Simd, const R: usize>(&self, s: S, panels: Range<usize>, scores: &mut [[[f32; LANES]; STEP]; R]) {
        for (place, panel) in panels.enumerate() {
            let (block, part) = self.place_of(panel);
            let position = block * self.cache.counts.slots + part * LANES;
            let valid = LANES.min(self.cache.counts.slots - part * LANES);
            for row in 0..R {
                let scores = &mut scores[row][place];
                if let Some(cap) = self.softcap {
                    s.store(capped(s, s.load(scores), cap), scores);
                }
                let seen = &self.seen[row];
                let first = seen.start.saturating_sub(position).min(LANES);
                let end = seen.end.saturating_sub(position).min(valid);
                if first > 0 || end < LANES {
                    scores[..first].fill(FLOOR);
                    scores[end.max(first)..].fill(FLOOR);
                }
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
