//! What rows have seen so far: a running maximum, the sum of their shares and of values by their shares.

use crate::simd::{Kernel, LANES, Simd, exp};
use bytemuck::cast_slice_mut;

/// Below every score that occurs; a running maximum begins here.
pub(super) const FLOOR: f32 = -1e30;

/// What rows have seen so far.
pub struct State<'a> {
    /// Running maximum of each row.
    pub highest: &'a mut [f32],
    /// Sums of the shares of each row, not yet added over the lanes.
    pub sum: &'a mut [[f32; LANES]],
    /// Sums of values `[rows][dimensions, padded to whole panels]`.
    pub values: &'a mut [[f32; LANES]],
}

/// Numbers that the state of `rows` rows takes, for heads of `panels` panels: whole vectors.
pub fn state_len(rows: usize, panels: usize) -> usize {
    LANES + rows * (1 + panels) * LANES
}

impl<'a> State<'a> {
    /// A state in a buffer of [`state_len`] numbers.
    #[inline(always)]
    pub fn over(buffer: &'a mut [f32], rows: usize) -> Self {
        let (highest, vectors) = buffer.split_at_mut(LANES);
        let highest = &mut highest[..rows];
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
