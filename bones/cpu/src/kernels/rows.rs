//! What is done to single rows: norms, activations, caps, rotation.

use crate::simd::{Kernel, LANES, Simd, sigmoid, tanh};
use bytemuck::{cast_slice, cast_slice_mut};
use tie_bones_model::description::Activation;

/// Splits off the elements that fill no vector.
fn whole(len: usize) -> usize {
    len / LANES * LANES
}

/// The last elements of a row, padded with zeros.
#[inline(always)]
fn padded(rest: &[f32]) -> [f32; LANES] {
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

/// A function of two vectors. A type, not a closure: what the compiler does not inline would lack the instruction set.
trait Pairwise {
    fn of<S: Simd>(&self, s: S, x: S::V, y: S::V) -> S::V;
}

/// Replaces each element by a function of it and of the one at the same place in `other`.
#[inline(always)]
fn each<S: Simd, F: Pairwise>(s: S, row: &mut [f32], other: &[f32], f: &F) {
    let at = whole(row.len());
    let (body, rest) = row.split_at_mut(at);
    for (x, y) in cast_slice_mut::<_, [f32; LANES]>(body).iter_mut().zip(cast_slice(&other[..at])) {
        s.store(f.of(s, s.load(x), s.load(y)), x);
    }
    if !rest.is_empty() {
        let mut last = padded(rest);
        s.store(f.of(s, s.load(&last), s.load(&padded(&other[at..]))), &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// x · factor · weight
struct Scaled(f32);

impl Pairwise for Scaled {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, x: S::V, weight: S::V) -> S::V {
        s.mul(s.mul(x, s.splat(self.0)), weight)
    }
}

impl Pairwise for Activation {
    #[inline(always)]
    fn of<S: Simd>(&self, s: S, gate: S::V, up: S::V) -> S::V {
        s.mul(activated(s, *self, gate), up)
    }
}

/// 1 / sqrt(mean(x²) + eps)
#[inline(always)]
fn norm_factor<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    let (body, rest) = x.split_at(whole(x.len()));
    let mut squares = s.splat(0.0);
    for x in cast_slice::<_, [f32; LANES]>(body) {
        let x = s.load(x);
        squares = s.fma(x, x, squares);
    }
    let last = s.load(&padded(rest));
    squares = s.fma(last, last, squares);
    1.0 / (s.sum(squares) / x.len() as f32 + eps).sqrt()
}

/// `out = x / sqrt(mean(x²) + eps) · weight`
#[inline(always)]
pub fn norm<S: Simd>(s: S, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let factor = Scaled(norm_factor(s, x, eps));
    out.copy_from_slice(x);
    each(s, out, weight, &factor);
}

/// The activation of a gate.
#[inline(always)]
pub fn activated<S: Simd>(s: S, activation: Activation, x: S::V) -> S::V {
    match activation {
        Activation::Silu => s.mul(x, sigmoid(s, x)),
        Activation::GeluTanh => {
            // x · (1 + tanh u) / 2 = x · sigmoid(2 u), where u = sqrt(2 / π) · (x + 0.044715 x³).
            let cubic = s.fma(s.mul(x, x), s.splat(0.044_715), s.splat(1.0));
            let twice = s.mul(s.mul(x, cubic), s.splat(2.0 * 0.797_884_6));
            s.mul(x, sigmoid(s, twice))
        }
    }
}

/// `x += norm(y)`
pub struct AddNormed<'a> {
    /// Changed.
    pub x: &'a mut [f32],
    /// Added once normed.
    pub y: &'a [f32],
    /// One an element.
    pub weight: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
}

impl Kernel for AddNormed<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = norm_factor(s, self.y, self.eps);
        let normed = self.y.iter().zip(self.weight).map(|(y, weight)| y * factor * weight);
        self.x.iter_mut().zip(normed).for_each(|(x, y)| *x += y);
    }
}

/// `out = act(gate) · up`
pub struct Gate<'a> {
    /// What the gate is made of.
    pub activation: Activation,
    /// Half of a row.
    pub gate: &'a [f32],
    /// The other half.
    pub up: &'a [f32],
    /// The result.
    pub out: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.out.copy_from_slice(self.gate);
        each(s, self.out, self.up, &self.activation);
    }
}

/// `x = cap · tanh(x / cap)`
pub struct SoftCap<'a> {
    /// A row.
    pub x: &'a mut [f32],
    /// The bound.
    pub cap: f32,
}

/// A vector under a cap.
#[inline(always)]
pub fn capped<S: Simd>(s: S, x: S::V, cap: f32) -> S::V {
    s.mul(tanh(s, s.mul(x, s.splat(1.0 / cap))), s.splat(cap))
}

impl Kernel for SoftCap<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let at = whole(self.x.len());
        let (body, rest) = self.x.split_at_mut(at);
        for x in cast_slice_mut::<_, [f32; LANES]>(body) {
            s.store(capped(s, s.load(x), self.cap), x);
        }
        let mut last = padded(rest);
        s.store(capped(s, s.load(&last), self.cap), &mut last);
        rest.copy_from_slice(&last[..rest.len()]);
    }
}

/// Norms each head of a row, then turns dimension j with j + pairs.
pub struct TurnHeads<'a> {
    /// Heads side by side.
    pub heads: &'a mut [f32],
    /// Elements of a head.
    pub dim: usize,
    /// Weight and epsilon of the norm.
    pub norm: Option<(&'a [f32], f32)>,
    /// Cosines and sines of the position, one a pair; empty where nothing turns.
    pub turns: (&'a [f32], &'a [f32]),
}

impl Kernel for TurnHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (cosines, sines) = self.turns;
        for head in self.heads.chunks_exact_mut(self.dim) {
            if let Some((weight, eps)) = self.norm {
                let factor = Scaled(norm_factor(s, head, eps));
                each(s, head, weight, &factor);
            }
            let (low, high) = head.split_at_mut(cosines.len());
            for (((a, b), cos), sin) in low.iter_mut().zip(high).zip(cosines).zip(sines) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}
