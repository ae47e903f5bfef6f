//! Rows of weights in their stored forms, read as vectors of floats.
//!
//! A form widens to the same floats on every instruction set: a scale has 11 significant bits and a quantised value at
//! most 8, so their product is exact, and a minimum is added with one rounding.

use crate::matrix::View;
use crate::simd::{Kernel, LANES, Pair, Simd};
use bytemuck::{cast_slice, cast_slice_mut};
use tie_bones_model::weights::BLOCK;

/// Weight rows read together.
pub const GROUP: usize = 4;

/// Part of memory that is asked for before it is read.
pub type Lines<'a> = &'a [[u8; 64]];

/// At least how far ahead: rows are short, and the processor's own prefetching starts anew with each.
const DISTANCE_BYTES: usize = 4096;

/// Writes one row of a matrix as floats, padded with zeros to whole pairs.
pub struct WidenRow<'a> {
    /// The matrix.
    pub view: View<'a>,
    /// Its K.
    pub cols: usize,
    /// Which row.
    pub row: usize,
    /// Where to.
    pub out: &'a mut [f32],
}

/// Four rows of weights that can be read a pair of vectors at a time.
pub trait Rows<S: Simd>: Copy {
    /// The elements `32 · block` to `32 · block + 31` of a row.
    fn pair(&self, s: S, row: usize, block: usize) -> [S::V; 2];
    /// The same rows, their lengths visibly `blocks`: indices below it then need no check.
    fn cut(self, blocks: usize) -> Self;
    /// Cache lines that one block of four rows fills.
    const LINES: usize;
    /// Whether reading costs as little as reading floats.
    const FLOATS: bool = false;
}

/// Each of four slices, cut. (Closures over arrays are not inlined reliably.)
#[inline(always)]
fn cut<E>(rows: [&[E]; GROUP], len: usize) -> [&[E]; GROUP] {
    let [a, b, c, d] = rows;
    [&a[..len], &b[..len], &c[..len], &d[..len]]
}

#[derive(Clone, Copy)]
pub struct Floats<'a>(pub [&'a [Pair<f32>]; GROUP]);

#[derive(Clone, Copy)]
pub struct Halves<'a>(pub [&'a [Pair<u16>]; GROUP]);

#[derive(Clone, Copy)]
pub struct Bytes<'a> {
    pub q: [&'a [Pair<i8>]; GROUP],
    pub scale: [&'a [f32]; GROUP],
}

#[derive(Clone, Copy)]
pub struct Nibbles<'a> {
    pub q: [&'a [[u8; LANES]]; GROUP],
    pub scale: [&'a [f32]; GROUP],
    pub base: [&'a [f32]; GROUP],
}

impl<S: Simd> Rows<S> for Floats<'_> {
    const LINES: usize = 8;
    const FLOATS: bool = true;

    #[inline(always)]
    fn cut(self, blocks: usize) -> Self {
        Self(cut(self.0, blocks))
    }

    #[inline(always)]
    fn pair(&self, s: S, row: usize, block: usize) -> [S::V; 2] {
        let pair = &self.0[row][block];
        [s.load(&pair[0]), s.load(&pair[1])]
    }
}

impl<S: Simd> Rows<S> for Halves<'_> {
    const LINES: usize = 4;
    #[inline(always)]
    fn cut(self, blocks: usize) -> Self {
        Self(cut(self.0, blocks))
    }

    #[inline(always)]
    fn pair(&self, s: S, row: usize, block: usize) -> [S::V; 2] {
        let pair = &self.0[row][block];
        [s.widen_bf16(&pair[0]), s.widen_bf16(&pair[1])]
    }
}

impl<S: Simd> Rows<S> for Bytes<'_> {
    const LINES: usize = 2;
    #[inline(always)]
    fn cut(self, blocks: usize) -> Self {
        Self { q: cut(self.q, blocks), scale: cut(self.scale, blocks) }
    }

    #[inline(always)]
    fn pair(&self, s: S, row: usize, block: usize) -> [S::V; 2] {
        let (pair, scale) = (&self.q[row][block], s.splat(self.scale[row][block]));
        [s.mul(scale, s.widen_i8(&pair[0])), s.mul(scale, s.widen_i8(&pair[1]))]
    }
}

impl<S: Simd> Rows<S> for Nibbles<'_> {
    const LINES: usize = 1;
    #[inline(always)]
    fn cut(self, blocks: usize) -> Self {
        Self { q: cut(self.q, blocks), scale: cut(self.scale, blocks), base: cut(self.base, blocks) }
    }

    #[inline(always)]
    fn pair(&self, s: S, row: usize, block: usize) -> [S::V; 2] {
        s.nibbles(&self.q[row][block], self.scale[row][block], self.base[row][block])
    }
}

/// Scales of four rows as floats, and the buffer of widened rows.
pub struct Scratch {
    pub blocks: usize,
    pub scale: Vec<f32>,
    pub base: Vec<f32>,
    pub wide: Vec<Pair<f32>>,
}

impl Scratch {
    pub fn new(cols: usize) -> Self {
        Self { blocks: cols.div_ceil(BLOCK), scale: Vec::new(), base: Vec::new(), wide: Vec::new() }
    }

    /// Widens the scales of four rows; `base` is what a nibble of 0 stands for.
    #[inline(always)]
    pub fn widen_scales<S: Simd>(&mut self, s: S, scale: [&[u16]; GROUP], min: Option<[&[u16]; GROUP]>, nibbles: bool) {
        self.scale.resize(GROUP * self.blocks, 0.0);
        widen_rows(s, scale, &mut self.scale);
        if !nibbles {
            return;
        }
        self.base.resize(GROUP * self.blocks, 0.0);
        if let Some(min) = min {
            widen_rows(s, min, &mut self.base);
        } else {
            // Exact: a power of two.
            self.base.iter_mut().zip(&self.scale).for_each(|(base, scale)| *base = -8.0 * scale);
        }
    }
}

#[inline(always)]
fn widen_rows<S: Simd>(s: S, rows: [&[u16]; GROUP], out: &mut [f32]) {
    let len = rows[0].len();
    for (row, out) in rows.into_iter().zip(out.chunks_exact_mut(len)) {
        widen_f16(s, row, out);
    }
}

/// Widens a row of scales. What fills no vector at the end is done again with the numbers before it.
#[inline(always)]
fn widen_f16<S: Simd>(s: S, halves: &[u16], out: &mut [f32]) {
    let len = halves.len().min(out.len());
    if len < LANES {
        let (mut x, mut y) = ([0; LANES], [0.0; LANES]);
        x[..len].copy_from_slice(&halves[..len]);
        s.store(s.widen_f16(&x), &mut y);
        return out[..len].copy_from_slice(&y[..len]);
    }
    let mut at = 0;
    while at < len {
        let from = at.min(len - LANES);
        let (x, y) = (&halves[from..from + LANES], &mut out[from..from + LANES]);
        s.store(s.widen_f16(&cast_slice(x)[0]), &mut cast_slice_mut(y)[0]);
        at += LANES;
    }
}

/// Consecutive rows of `len` elements; past the last row of the matrix, the last row again.
#[inline(always)]
pub fn group<E>(data: &[E], len: usize, first: usize, rows: usize) -> [&[E]; GROUP] {
    let [a, b, c, d] = [first, first + 1, first + 2, first + 3];
    [row(data, len, a, rows), row(data, len, b, rows), row(data, len, c, rows), row(data, len, d, rows)]
}

#[inline(always)]
fn row<E>(data: &[E], len: usize, row: usize, rows: usize) -> &[E] {
    let row = row.min(rows - 1);
    &data[row * len..(row + 1) * len]
}

#[inline(always)]
pub fn split<E>(data: &[E], len: usize) -> [&[E]; GROUP] {
    group(data, len, 0, GROUP)
}

/// What four rows from `first` on will be followed by, as many lines as they fill; nothing at the end of the matrix.
#[inline(always)]
pub fn ahead<E: bytemuck::Pod>(data: &[E], row_len: usize, first: usize) -> Lines<'_> {
    let bytes: &[u8] = cast_slice(data);
    let len = GROUP * row_len * size_of::<E>();
    let start = first * row_len * size_of::<E>() + len.max(DISTANCE_BYTES);
    match bytes.get(start..start + len) {
        Some(bytes) => cast_slice(&bytes[..len / 64 * 64]),
        None => &[],
    }
}

/// Widens four rows into `wide`; `next` is read soon.
#[inline(always)]
pub fn widen<S: Simd, R: Rows<S>>(s: S, w: R, blocks: usize, next: Lines<'_>, wide: &mut Vec<Pair<f32>>) {
    wide.resize(GROUP * blocks, [[0.0; LANES]; 2]);
    let w = w.cut(blocks);
    let mut next = next.chunks_exact(R::LINES.div_ceil(GROUP));
    for (row, out) in wide.chunks_exact_mut(blocks).enumerate() {
        for (block, pair) in out.iter_mut().enumerate() {
            for line in next.next().unwrap_or_default() {
                s.prefetch(line);
            }
            let [low, high] = w.pair(s, row, block);
            s.store(low, &mut pair[0]);
            s.store(high, &mut pair[1]);
        }
    }
}

/// Copies rows that are not whole pairs, as floats padded with zeros.
pub fn pad<E: Copy>(rows: [&[E]; GROUP], blocks: usize, wide: &mut Vec<Pair<f32>>, float: impl Fn(E) -> f32) {
    wide.clear();
    wide.resize(GROUP * blocks, [[0.0; LANES]; 2]);
    for (row, out) in rows.into_iter().zip(wide.chunks_exact_mut(blocks)) {
        for (x, y) in row.iter().zip(out.as_flattened_mut().as_flattened_mut()) {
            *y = float(*x);
        }
    }
}

pub fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

impl Kernel for WidenRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (cols, blocks, row) = (self.cols, self.cols.div_ceil(BLOCK), self.row);
        let mut scratch = Scratch::new(cols);
        match self.view {
            View::F32(data) => self.out[..cols].copy_from_slice(&data[row * cols..(row + 1) * cols]),
            View::Bf16(data) => {
                let halves = &data[row * cols..(row + 1) * cols];
                self.out.iter_mut().zip(halves).for_each(|(out, &half)| *out = bf16(half));
            }
            View::Int8 { q, scale } => {
                scratch.widen_scales(s, [&scale[row * blocks..(row + 1) * blocks]; GROUP], None, false);
                let q = &cast_slice(q)[row * blocks..(row + 1) * blocks];
                let w = Bytes { q: [q; GROUP], scale: split(&scratch.scale, blocks) };
                widen(s, w, blocks, &[], &mut scratch.wide);
                self.out.copy_from_slice(&cast_slice(&scratch.wide)[..blocks * BLOCK]);
            }
            View::Int4 { q, scale, min } => {
                let min = min.map(|min| [&min[row * blocks..(row + 1) * blocks]; GROUP]);
                scratch.widen_scales(s, [&scale[row * blocks..(row + 1) * blocks]; GROUP], min, true);
                let q = &cast_slice(q)[row * blocks..(row + 1) * blocks];
                let w =
                    Nibbles { q: [q; GROUP], scale: split(&scratch.scale, blocks), base: split(&scratch.base, blocks) };
                widen(s, w, blocks, &[], &mut scratch.wide);
                self.out.copy_from_slice(&cast_slice(&scratch.wide)[..blocks * BLOCK]);
            }
        }
    }
}
