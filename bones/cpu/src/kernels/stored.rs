//! Types of numbers of which a word holds one or two: weights, keys and values.
// Methods, not closures: what the compiler does not inline into a kernel would lack the instruction set.

use crate::simd::{LANES, Simd};

/// How sixteen words are multiplied with one.
pub trait Stored {
    /// Words of sixteen numbers.
    const WORDS: usize;
    /// acc + w · x
    fn dot<S: Simd>(s: S, acc: S::V, w: S::W, x: u32) -> S::V;
    /// Sixteen shares as words.
    fn words<S: Simd>(s: S, shares: &[f32; LANES]) -> [u32; LANES];
}

/// A word is one float.
pub struct F32;
/// A word is two bfloat16.
pub struct Bf16;

impl Stored for F32 {
    const WORDS: usize = LANES;

    #[inline(always)]
    fn dot<S: Simd>(s: S, acc: S::V, w: S::W, x: u32) -> S::V {
        s.dot_f32(acc, w, x)
    }

    #[inline(always)]
    fn words<S: Simd>(_: S, shares: &[f32; LANES]) -> [u32; LANES] {
        bytemuck::cast(*shares)
    }
}

impl Stored for Bf16 {
    const WORDS: usize = LANES / 2;

    #[inline(always)]
    fn dot<S: Simd>(s: S, acc: S::V, w: S::W, x: u32) -> S::V {
        s.dot_bf16(acc, w, x)
    }

    #[inline(always)]
    fn words<S: Simd>(s: S, shares: &[f32; LANES]) -> [u32; LANES] {
        let halves: [u32; LANES / 2] = bytemuck::cast(s.narrow_bf16(s.load(shares)));
        let mut words = [0; LANES];
        words[..LANES / 2].copy_from_slice(&halves);
        words
    }
}
