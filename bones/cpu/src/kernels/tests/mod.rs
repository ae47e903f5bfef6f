//! Kernels against sums in 64 bits, for odd shapes, on every instruction set.
//!
//! Everything that a kernel reads or writes lies in a buffer of its exact size: under an address sanitizer a read beyond
//! an end is an error.

mod attention;
mod cache;
mod packed;
mod prepare;
mod products;
mod rows;
mod steps;

use super::PrepareTile;
use crate::operand::{Form, Operand, TILE, height};
use crate::simd::{Isa, to_bf16};

/// Numbers between −1 and 1 that look random.
fn noise(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// A number as bfloat16 keeps it.
fn rounded(x: f32) -> f32 {
    f32::from_bits(u32::from(to_bf16(x)) << 16)
}

/// A block's scale and its elements in units of it.
fn quantised(block: &[f32]) -> (f32, Vec<f32>) {
    let scale = block.iter().fold(0.0_f32, |largest, x| largest.max(x.abs())) / 127.0;
    let inverse = if scale > 0.0 && (1.0 / scale).is_finite() { 1.0 / scale } else { 0.0 };
    (scale, block.iter().map(|x| (x * inverse).round_ties_even()).collect())
}

/// What a form keeps of a row.
fn kept(form: Form, row: &[f32]) -> Vec<f64> {
    match form {
        Form::F32 => row.iter().map(|&x| x.into()).collect(),
        Form::Bf16 => row.iter().map(|&x| rounded(x).into()).collect(),
        Form::Bytes => {
            let blocks = row.chunks(32).map(quantised);
            blocks.flat_map(|(scale, q)| q.into_iter().map(move |q| f64::from(scale) * f64::from(q))).collect()
        }
    }
}

/// Rows in some forms, written tile by tile.
fn operand(isa: Isa, x: &[f32], cols: usize, forms: &[Form], norm: Option<(&[f32], f32)>) -> Operand {
    let rows = x.len() / cols;
    let mut operand = Operand::new().unwrap();
    operand.reshape(rows, cols, |form| forms.contains(&form)).unwrap();
    for &form in forms {
        let all = operand.words_mut(form);
        // What was there before is overwritten, padding included.
        all.fill(u32::MAX);
        let mut rest = all;
        for first in (0..rows).step_by(TILE) {
            let height = height(rows, first);
            let (words, after) = rest.split_at_mut(height * form.words(cols));
            rest = after;
            let x = &x[first * cols..rows.min(first + TILE) * cols];
            isa.run(PrepareTile { form, x, cols, norm, scratch: &mut Vec::new(), words, height });
        }
        assert!(rest.is_empty());
    }
    operand
}
