//! Puts rows of activations into the forms that matrices read.
//!
//! Bytes are quantised by blocks of 32 elements, symmetrically: the largest magnitude of a block becomes 127.

use crate::kernels::rows::norm;
use crate::operand::{BLOCK_WORDS, Form, MINUS_8, MINUS_128, SCALE, SUM, TILE, run};
use crate::simd::{Kernel, LANES, Simd, WHOLE};
use bytemuck::{cast_slice, cast_slice_mut};
use tie_bones_model::weights::BLOCK;

/// Writes a tile of rows in one form.
pub struct PrepareTile<'a> {
    /// What to write.
    pub form: Form,
    /// The rows, one after another.
    pub x: &'a [f32],
    /// Elements of a row.
    pub cols: usize,
    /// Weight and epsilon of a norm that is taken first.
    pub norm: Option<(&'a [f32], f32)>,
    /// Room for one row.
    pub scratch: &'a mut Vec<f32>,
    /// The tile's words `[K words][height]`, or as [`run`] says.
    pub words: &'a mut [u32],
    /// Rows of the tile, padding included.
    pub height: usize,
}

impl Kernel for PrepareTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let rows = self.x.len() / self.cols;
        let padded = self.cols.next_multiple_of(BLOCK);
        self.scratch.clear();
        self.scratch.resize(padded, 0.0);
        let run = run(self.form, self.cols, s.matrix_unit().is_some());
        for m in 0..self.height {
            if m < rows {
                let x = &self.x[m * self.cols..(m + 1) * self.cols];
                match self.norm {
                    Some((weight, eps)) => norm(s, x, weight, eps, &mut self.scratch[..self.cols]),
                    None => self.scratch[..self.cols].copy_from_slice(x),
                }
            } else {
                self.scratch.fill(0.0);
            }
            let words = Column { words: self.words, height: self.height, m };
            match self.form {
                Form::Bf16 if run > 1 => bf16_side_by_side(s, self.scratch, words),
                Form::F32 => words.put(0, self.scratch[..self.cols].iter().map(|x| x.to_bits())),
                Form::Bf16 => bf16(s, self.scratch, self.cols.div_ceil(2), words),
                Form::Bytes => bytes(s, self.scratch, words),
            }
        }
    }
}

/// The words of one row of a tile.
struct Column<'a> {
    words: &'a mut [u32],
    height: usize,
    m: usize,
}

impl Column<'_> {
    #[inline(always)]
    fn put(self, first: usize, values: impl Iterator<Item = u32>) {
        put(self.words, self.height, first * self.height + self.m, values);
    }
}

#[inline(always)]
fn put(words: &mut [u32], height: usize, at: usize, values: impl Iterator<Item = u32>) {
    if let Some(words) = words.get_mut(at..) {
        for (word, value) in words.iter_mut().step_by(height).zip(values) {
            *word = value;
        }
    }
}

#[inline(always)]
fn bf16<S: Simd>(s: S, x: &[f32], len: usize, column: Column<'_>) {
    let Column { words, height, m } = column;
    for (part, x) in cast_slice::<_, [f32; LANES]>(x).iter().enumerate() {
        let halves = s.narrow_bf16(s.load(x));
        let pairs: &[[u16; 2]] = cast_slice(&halves);
        let first = part * LANES / 2;
        let count = (LANES / 2).min(len.saturating_sub(first));
        let values = pairs[..count].iter().map(|pair| u32::from(pair[0]) | u32::from(pair[1]) << 16);
        put(words, height, first * height + m, values);
    }
}

/// Sixteen words of a row behind each other, then those of the next row.
#[inline(always)]
fn bf16_side_by_side<S: Simd>(s: S, x: &[f32], column: Column<'_>) {
    let Column { words, height, m } = column;
    for (x, words) in x.chunks_exact(2 * WHOLE).zip(words.chunks_exact_mut(height * WHOLE)) {
        let x: &[[f32; LANES]] = cast_slice(x);
        let halves = [s.narrow_bf16(s.load(&x[0])), s.narrow_bf16(s.load(&x[1]))];
        words[m * WHOLE..(m + 1) * WHOLE].copy_from_slice(cast_slice(halves.as_flattened()));
    }
}

#[inline(always)]
fn bytes<S: Simd>(s: S, x: &[f32], column: Column<'_>) {
    let Column { words, height, m } = column;
    match height {
        1 => bytes_of::<S, 1>(s, x, cast_slice_mut(words), m),
        2 => bytes_of::<S, 2>(s, x, cast_slice_mut(words), m),
        4 => bytes_of::<S, 4>(s, x, cast_slice_mut(words), m),
        _ => bytes_of::<S, TILE>(s, x, cast_slice_mut(words), m),
    }
}

#[inline(always)]
fn bytes_of<S: Simd, const M: usize>(s: S, x: &[f32], words: &mut [[u32; M]], m: usize) {
    // Adding and subtracting 1.5 · 2²³ rounds to a whole number, ties to even.
    let (up, down) = (s.splat(12_582_912.0), s.splat(-12_582_912.0));
    for (x, words) in x.chunks_exact(BLOCK).zip(words.chunks_exact_mut(BLOCK_WORDS)) {
        let x: &[[f32; LANES]] = cast_slice(x);
        let (low, high) = (s.load(&x[0]), s.load(&x[1]));
        // A NaN or an infinity is not lost: the scale carries it into every result.
        let scale = s.magnitude(low, high) / 127.0;
        let inverse = if scale > 0.0 && (1.0 / scale).is_finite() { 1.0 / scale } else { 0.0 };
        let low = s.add(s.add(s.mul(low, s.splat(inverse)), up), down);
        let high = s.add(s.add(s.mul(high, s.splat(inverse)), up), down);
        let q: [[u32; LANES / 4]; 2] = bytemuck::cast([s.narrow_i8(low), s.narrow_i8(high)]);
        for (word, q) in words.iter_mut().zip(q.as_flattened()) {
            word[m] = *q;
        }
        let sum = s.sum(s.add(low, high));
        words[SCALE][m] = scale.to_bits();
        words[SUM][m] = (scale * sum).to_bits();
        words[MINUS_8][m] = (-8 * sum as i32) as u32;
        words[MINUS_128][m] = (-128 * sum as i32) as u32;
    }
}
