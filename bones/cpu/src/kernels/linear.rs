//! Multiplies rows of activations by rows of weights.
//!
//! Four weight rows are multiplied by up to four activation rows at a time. Each product of two rows has one vector
//! accumulator that walks along K in steps of sixteen and is summed at the end: that order is the same for every number
//! of activation rows. Up to four activation rows take the weights straight from memory, widened in registers; for more,
//! four weight rows are widened once into a buffer that stays in the first-level cache. Both see the same floats.

use crate::grid::Tile;
use crate::kernels::stored::{
    Bytes, Floats, GROUP, Halves, Lines, Nibbles, Rows, Scratch, ahead, bf16, group, pad, split, widen,
};
use crate::matrix::View;
use crate::simd::{Kernel, Pair, Simd};
use bytemuck::cast_slice;
use tie_bones_model::weights::BLOCK;

/// Activation rows multiplied together.
const TALL: usize = 4;
/// Activation rows for which widened weight rows are reused: they stay in the second-level cache.
const PASS: usize = 64;

/// `y[m, n] = x[m] · w[n] + bias[n]` for one tile of y.
pub struct LinearTile<'a, 'y> {
    /// The weights.
    pub view: View<'a>,
    /// Rows of the weights.
    pub rows: usize,
    /// K.
    pub cols: usize,
    /// Activations `[M, K]`, each row padded with zeros to whole pairs.
    pub x: &'a [f32],
    /// Added to each row of the result.
    pub bias: Option<&'a [f32]>,
    /// All M rows of some columns of the result.
    pub y: &'a mut Tile<'y>,
}

/// The products of four weight rows with `TALL` or fewer activation rows; `next` is read soon.
#[inline(always)]
fn product<S: Simd, R: Rows<S>, const M: usize>(
    s: S,
    w: R,
    x: [&[Pair<f32>]; M],
    next: Lines<'_>,
) -> [[f32; GROUP]; M] {
    let blocks = x[0].len();
    let w = w.cut(blocks);
    let mut sums = [[s.splat(0.0); GROUP]; M];
    let mut next = next.chunks_exact(R::LINES);
    for block in 0..blocks {
        for line in next.next().unwrap_or_default() {
            s.prefetch(line);
        }
        let mut pairs = [[s.splat(0.0); 2]; M];
        for (pair, x) in pairs.iter_mut().zip(&x) {
            *pair = [s.load(&x[block][0]), s.load(&x[block][1])];
        }
        for row in 0..GROUP {
            let [low, high] = w.pair(s, row, block);
            for (sum, pair) in sums.iter_mut().zip(&pairs) {
                sum[row] = s.fma(high, pair[1], s.fma(low, pair[0], sum[row]));
            }
        }
    }
    let mut out = [[0.0; GROUP]; M];
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = s.sum4(sum);
    }
    out
}

/// Products with any number of activation rows; `put` gets the row and its four results.
#[inline(always)]
fn products<S: Simd, R: Rows<S>>(
    s: S,
    w: R,
    x: &[Pair<f32>],
    blocks: usize,
    next: Lines<'_>,
    put: &mut impl FnMut(usize, [f32; GROUP]),
) {
    let row = |m: usize| &x[m * blocks..(m + 1) * blocks];
    let rows = x.len() / blocks;
    let (mut m, mut next) = (0, next);
    while m + TALL <= rows {
        let four = product::<S, R, TALL>(s, w, [row(m), row(m + 1), row(m + 2), row(m + 3)], next);
        next = &[];
        for (i, sums) in four.into_iter().enumerate() {
            put(m + i, sums);
        }
        m += TALL;
    }
    match rows - m {
        3 => {
            let three = product::<S, R, 3>(s, w, [row(m), row(m + 1), row(m + 2)], next);
            for (i, sums) in three.into_iter().enumerate() {
                put(m + i, sums);
            }
        }
        2 => {
            let two = product::<S, R, 2>(s, w, [row(m), row(m + 1)], next);
            for (i, sums) in two.into_iter().enumerate() {
                put(m + i, sums);
            }
        }
        1 => put(m, product::<S, R, 1>(s, w, [row(m)], next)[0]),
        _ => (),
    }
}

/// Products straight from memory for few activation rows, over widened rows for many.
#[inline(always)]
fn multiply<S: Simd, R: Rows<S>>(
    s: S,
    w: R,
    x: &[Pair<f32>],
    blocks: usize,
    next: Lines<'_>,
    wide: &mut Vec<Pair<f32>>,
    put: &mut impl FnMut(usize, [f32; GROUP]),
) {
    if R::FLOATS || x.len() <= TALL * blocks {
        products(s, w, x, blocks, next, put);
    } else {
        widen(s, w, blocks, next, wide);
        products(s, Floats(split(wide, blocks)), x, blocks, &[], put);
    }
}

impl LinearTile<'_, '_> {
    #[inline(always)]
    fn group<S: Simd>(
        &self,
        s: S,
        first: usize,
        x: &[Pair<f32>],
        scratch: &mut Scratch,
        put: &mut impl FnMut(usize, [f32; GROUP]),
    ) {
        let (rows, cols, blocks) = (self.rows, self.cols, scratch.blocks);
        let ragged = cols % BLOCK != 0;
        match self.view {
            View::F32(data) if ragged => {
                pad(group(data, cols, first, rows), blocks, &mut scratch.wide, |x| x);
                products(s, Floats(split(&scratch.wide, blocks)), x, blocks, &[], put);
            }
            View::Bf16(data) if ragged => {
                pad(group(data, cols, first, rows), blocks, &mut scratch.wide, bf16);
                products(s, Floats(split(&scratch.wide, blocks)), x, blocks, &[], put);
            }
            View::F32(data) => {
                let w = Floats(group(cast_slice(data), blocks, first, rows));
                multiply(s, w, x, blocks, ahead(data, cols, first), &mut scratch.wide, put);
            }
            View::Bf16(data) => {
                let w = Halves(group(cast_slice(data), blocks, first, rows));
                multiply(s, w, x, blocks, ahead(data, cols, first), &mut scratch.wide, put);
            }
            View::Int8 { q, scale } => {
                scratch.widen_scales(s, group(scale, blocks, first, rows), None, false);
                let w = Bytes { q: group(cast_slice(q), blocks, first, rows), scale: split(&scratch.scale, blocks) };
                multiply(s, w, x, blocks, ahead(q, cols, first), &mut scratch.wide, put);
            }
            View::Int4 { q, scale, min } => {
                let min = min.map(|min| group(min, blocks, first, rows));
                scratch.widen_scales(s, group(scale, blocks, first, rows), min, true);
                let next = ahead(q, cols / 2, first);
                let q = group(cast_slice(q), blocks, first, rows);
                let w = Nibbles { q, scale: split(&scratch.scale, blocks), base: split(&scratch.base, blocks) };
                multiply(s, w, x, blocks, next, &mut scratch.wide, put);
            }
        }
    }
}

impl Kernel for LinearTile<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut scratch = Scratch::new(self.cols);
        let (columns, rows) = (self.y.columns(), self.y.rows());
        let x: &[Pair<f32>] = cast_slice(self.x);
        let x = &x[rows.start * scratch.blocks..rows.end * scratch.blocks];
        let mut results = [[0.0; GROUP]; PASS];
        for (pass, x) in x.chunks(PASS * scratch.blocks).enumerate() {
            for first in columns.clone().step_by(GROUP) {
                let count = GROUP.min(columns.end - first);
                self.group(s, first, x, &mut scratch, &mut |m, sums| results[m] = sums);
                for (m, sums) in results[..x.len() / scratch.blocks].iter_mut().enumerate() {
                    if let Some(bias) = self.bias {
                        sums.iter_mut().zip(&bias[first..first + count]).for_each(|(sum, bias)| *sum += bias);
                    }
                    let row = self.y.row(rows.start + pass * PASS + m);
                    row[first - columns.start..][..count].copy_from_slice(&sums[..count]);
                }
            }
        }
    }
}
