//! Norms and gates of single rows.

use crate::simd::{Kernel, LANES, Simd, sigmoid};
use bytemuck::{cast_slice, cast_slice_mut};

/// Splits off the elements that fill no vector.
fn whole(len: usize) -> usize {
    len / LANES * LANES
}

/// The last elements of a row, padded with zeros.
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

/// `out = x / sqrt(mean(x²) + eps) · weight`
pub struct NormRow<'a> {
    /// A row.
    pub x: &'a [f32],
    /// One weight an element.
    pub weight: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
    /// The result.
    pub out: &'a mut [f32],
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (body, rest) = self.x.split_at(whole(self.x.len()));
        let mut squares = s.splat(0.0);
        for x in cast_slice::<_, [f32; LANES]>(body) {
            let x = s.load(x);
            squares = s.fma(x, x, squares);
        }
        let last = s.load(&padded(rest));
        squares = s.fma(last, last, squares);
        let factor = 1.0 / (s.sum(squares) / self.x.len() as f32 + self.eps).sqrt();
        for ((out, x), weight) in self.out.iter_mut().zip(self.x).zip(self.weight) {
            *out = x * factor * weight;
        }
    }
}

/// `gate = silu(gate) · up`
pub struct Gate<'a> {
    /// Part of a row.
    pub gate: &'a mut [f32],
    /// The same part of the other row.
    pub up: &'a [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let at = whole(self.gate.len());
        let (body, rest) = self.gate.split_at_mut(at);
        for (gate, up) in cast_slice_mut::<_, [f32; LANES]>(body).iter_mut().zip(cast_slice(&self.up[..at])) {
            *gate = gated(s, gate, up);
        }
        let last = gated(s, &padded(rest), &padded(&self.up[at..]));
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

#[inline(always)]
fn gated<S: Simd>(s: S, gate: &[f32; LANES], up: &[f32; LANES]) -> [f32; LANES] {
    let x = s.load(gate);
    let mut out = [0.0; LANES];
    s.store(s.mul(s.mul(x, sigmoid(s, x)), s.load(up)), &mut out);
    out
}
