//! Attention of a few rows to one sequence's cached keys and values.
//!
//! A row is one query head of one token. Scores, softmax and the sum of values walk the positions of the sequence from
//! the first on, whatever rows share the call, so a row's result depends on its own query and the cache alone.

use crate::cache::Layer;
use crate::simd::{Element, Kernel, LANES, Simd, exp};
use bytemuck::{cast_slice, cast_slice_mut};

/// Up to this many rows share the reading of the cache.
pub const ROWS: usize = 4;
/// Vectors of a value that are summed together.
const WIDE: usize = 4;

/// Attends up to [`ROWS`] rows.
pub struct AttendTile<'a, E> {
    /// Queries `[rows, head_dim]`, already multiplied by the softmax scale.
    pub q: &'a [f32],
    /// How many positions each row sees; ascending, at least 1.
    pub limits: &'a [usize],
    /// The sequence's blocks.
    pub blocks: &'a [u32],
    /// One layer and head of the cache.
    pub cache: Layer<'a, E>,
    /// Room for scores, kept between calls.
    pub scores: &'a mut Vec<f32>,
    /// Results `[rows, padded head_dim]`.
    pub out: &'a mut [f32],
}

impl<E: Element> Kernel for AttendTile<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        match self.limits.len() {
            1 => self.attend::<S, 1>(s),
            2 => self.attend::<S, 2>(s),
            3 => self.attend::<S, 3>(s),
            _ => self.attend::<S, ROWS>(s),
        }
    }
}

impl<E: Element> AttendTile<'_, E> {
    #[inline(always)]
    fn attend<S: Simd, const R: usize>(&mut self, s: S) {
        let seen = self.limits[R - 1];
        // Scores are written in whole vectors, whose last lanes may lie beyond the last block.
        let stride = (seen + 2 * LANES).next_multiple_of(LANES);
        let mut scores = std::mem::take(self.scores);
        scores.resize(scores.len().max(R * stride), 0.0);
        self.score::<S, R>(s, seen, stride, &mut scores);
        let mut shares = [0.0; R];
        for (row, share) in shares.iter_mut().enumerate() {
            *share = softmax(s, &mut scores[row * stride..(row + 1) * stride], self.limits[row]);
        }
        let vectors = self.cache.dim_lanes;
        let mut first = 0;
        while first < vectors {
            match vectors - first {
                1 => self.weigh::<S, R, 1>(s, first, seen, stride, &scores, shares),
                2 => self.weigh::<S, R, 2>(s, first, seen, stride, &scores, shares),
                3 => self.weigh::<S, R, 3>(s, first, seen, stride, &scores, shares),
                _ => self.weigh::<S, R, WIDE>(s, first, seen, stride, &scores, shares),
            }
            first += WIDE;
        }
        *self.scores = scores;
    }

    /// q · k for every position; sixteen keys at a time, dimension by dimension.
    #[inline(always)]
    fn score<S: Simd, const R: usize>(&self, s: S, seen: usize, stride: usize, scores: &mut [f32]) {
        let Layer { block_size, slot_lanes, head_dim, .. } = self.cache;
        for (index, &block) in self.blocks[..seen.div_ceil(block_size)].iter().enumerate() {
            let keys = self.cache.keys(block);
            let in_block = block_size.min(seen - index * block_size);
            for lane in 0..in_block.div_ceil(LANES) {
                let mut sums = [s.splat(0.0); R];
                for dim in 0..head_dim {
                    let key = E::widen(s, &keys[dim * slot_lanes + lane]);
                    for (row, sum) in sums.iter_mut().enumerate() {
                        *sum = s.fma(s.splat(self.q[row * head_dim + dim]), key, *sum);
                    }
                }
                let position = index * block_size + lane * LANES;
                for (row, sum) in sums.into_iter().enumerate() {
                    let at = row * stride + position;
                    s.store(sum, lanes(&mut scores[at..at + LANES]));
                }
            }
        }
    }

    /// The sum of values by their shares, position by position, for `W` vectors of the head.
    #[inline(always)]
    fn weigh<S: Simd, const R: usize, const W: usize>(
        &mut self,
        s: S,
        first: usize,
        seen: usize,
        stride: usize,
        scores: &[f32],
        shares: [f32; R],
    ) {
        let Layer { block_size, dim_lanes, .. } = self.cache;
        let mut sums = [[s.splat(0.0); W]; R];
        for (index, &block) in self.blocks[..seen.div_ceil(block_size)].iter().enumerate() {
            let position = index * block_size;
            let values = self.cache.values(block);
            for (slot, value) in values.chunks_exact(dim_lanes).take(seen - position).enumerate() {
                let mut vectors = [s.splat(0.0); W];
                for (vector, value) in vectors.iter_mut().zip(&value[first..first + W]) {
                    *vector = E::widen(s, value);
                }
                for (row, sum) in sums.iter_mut().enumerate() {
                    let share = s.splat(scores[row * stride + position + slot]);
                    for (sum, vector) in sum.iter_mut().zip(vectors) {
                        *sum = s.fma(share, vector, *sum);
                    }
                }
            }
        }
        let out: &mut [[f32; LANES]] = cast_slice_mut(self.out);
        for (row, (sum, share)) in sums.into_iter().zip(shares).enumerate() {
            for (vector, sum) in sum.into_iter().enumerate() {
                s.store(s.div(sum, s.splat(share)), &mut out[row * dim_lanes + first + vector]);
            }
        }
    }
}

#[inline(always)]
fn lanes(slice: &mut [f32]) -> &mut [f32; LANES] {
    &mut cast_slice_mut(slice)[0]
}

/// Turns the first `limit` scores into unnormalised shares, the rest into 0, and gives the sum of the shares.
#[inline(always)]
fn softmax<S: Simd>(s: S, scores: &mut [f32], limit: usize) -> f32 {
    let used = limit.next_multiple_of(LANES);
    scores[limit..used].fill(f32::NEG_INFINITY);
    let mut highest = s.splat(f32::NEG_INFINITY);
    for x in cast_slice::<_, [f32; LANES]>(&scores[..used]) {
        highest = s.max(s.load(x), highest);
    }
    let lowest = s.splat(-s.highest(highest));
    for x in cast_slice_mut::<_, [f32; LANES]>(&mut scores[..used]) {
        let share = exp(s, s.add(s.load(x), lowest));
        s.store(share, x);
    }
    scores[limit..].fill(0.0);
    let mut sum = s.splat(0.0);
    for x in cast_slice::<_, [f32; LANES]>(&scores[..used]) {
        sum = s.add(s.load(x), sum);
    }
    s.sum(sum)
}
