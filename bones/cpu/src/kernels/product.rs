//! The product of a panel of weights with a tile of activations.
//!
//! A panel holds sixteen rows of a matrix, one a lane: a walk along K adds to sixteen results at once, and no sum over
//! lanes is ever needed. Each result is added up in one order (by words, or by blocks of whole numbers that are exact),
//! whatever the height of the tile, so a row's results do not depend on its company.

use crate::kernels::stored::{Bf16, F32, Stored};
use crate::matrix::View;
use crate::operand::{BLOCK_WORDS, MINUS_8, MINUS_128, SCALE, SUM, TILE, Tile};
use crate::simd::{LANES, Simd, Words};
use bytemuck::cast_slice;

/// Results of a tile: a row of sixteen for each of its rows.
pub type Products = [[f32; LANES]; TILE];

/// Bytes between what is multiplied and what is fetched from memory meanwhile.
const AHEAD: usize = 4096;
/// Sums of whole numbers that a low tile keeps in flight, so as not to wait for each product.
const CHAINS: usize = 4;

/// Multiplies one panel with one tile, whose words are in the form that the matrix reads.
#[inline(always)]
pub fn product<S: Simd>(s: S, view: &View<'_>, panel: usize, x: &Tile<'_>, out: &mut Products) {
    match x.height {
        1 => of_height::<S, 1>(s, view, panel, x.words, out),
        2 => of_height::<S, 2>(s, view, panel, x.words, out),
        4 => of_height::<S, 4>(s, view, panel, x.words, out),
        _ => of_height::<S, TILE>(s, view, panel, x.words, out),
    }
}

#[inline(always)]
fn of_height<S: Simd, const M: usize>(s: S, view: &View<'_>, panel: usize, x: &[u32], out: &mut Products) {
    let x: &[[u32; M]] = cast_slice(x);
    let sums = match view {
        View::F32(w) => words::<S, F32, M>(s, w.of(panel), x),
        View::Bf16(w) => words::<S, Bf16, M>(s, w.of(panel), x),
        View::Int8 { q, scale } => blocks::<S, Bytes, M>(s, q.of(panel), scale.of(panel), &[], x),
        View::Int4 { q, scale, min: None } => blocks::<S, Nibbles, M>(s, q.of(panel), scale.of(panel), &[], x),
        View::Int4 { q, scale, min: Some(min) } => {
            blocks::<S, NibblesFrom, M>(s, q.of(panel), scale.of(panel), min.of(panel), x)
        }
    };
    for (out, sum) in out.iter_mut().zip(sums) {
        s.store(sum, out);
    }
}

/// Words with even and odd places are added up apart: twice as many sums in flight.
#[inline(always)]
fn words<S: Simd, T: Stored, const M: usize>(s: S, w: &[Words], x: &[[u32; M]]) -> [S::V; M] {
    let (mut even, mut odd) = ([s.splat(0.0); M], [s.splat(0.0); M]);
    let (mut pairs, mut rows) = (w.chunks_exact(2), x.chunks_exact(2));
    for (w, x) in pairs.by_ref().zip(rows.by_ref()) {
        s.prefetch(&w[0], AHEAD);
        s.prefetch(&w[1], AHEAD);
        let (first, second) = (s.words(&w[0]), s.words(&w[1]));
        for m in 0..M {
            even[m] = T::dot(s, even[m], first, x[0][m]);
            odd[m] = T::dot(s, odd[m], second, x[1][m]);
        }
    }
    if let ([w], [x]) = (pairs.remainder(), rows.remainder()) {
        let last = s.words(w);
        for m in 0..M {
            even[m] = T::dot(s, even[m], last, x[m]);
        }
    }
    for m in 0..M {
        even[m] = s.add(even[m], odd[m]);
    }
    even
}

/// A type of quantised weights.
trait Quantised {
    /// Words of a block.
    const WORDS: usize;
    /// Where a sum of products begins, so that it ends at Σ (q − zero) · x; weights have a least one where absent.
    const START: Option<usize>;
    /// Eight vectors of unsigned bytes.
    fn words<S: Simd>(s: S, q: &[Words]) -> [S::W; 8];
}

/// Bytes, 128 standing for zero.
struct Bytes;
/// Nibbles, 8 standing for zero.
struct Nibbles;
/// Nibbles, 0 standing for a block's least weight.
struct NibblesFrom;

impl Quantised for Bytes {
    const WORDS: usize = 8;
    const START: Option<usize> = Some(MINUS_128);

    #[inline(always)]
    fn words<S: Simd>(s: S, q: &[Words]) -> [S::W; 8] {
        let mut words = [s.words(&q[0]); 8];
        for j in 1..8 {
            words[j] = s.words(&q[j]);
        }
        words
    }
}

impl Quantised for Nibbles {
    const WORDS: usize = 4;
    const START: Option<usize> = Some(MINUS_8);

    #[inline(always)]
    fn words<S: Simd>(s: S, q: &[Words]) -> [S::W; 8] {
        nibbles(s, q)
    }
}

impl Quantised for NibblesFrom {
    const WORDS: usize = 4;
    const START: Option<usize> = None;

    #[inline(always)]
    fn words<S: Simd>(s: S, q: &[Words]) -> [S::W; 8] {
        nibbles(s, q)
    }
}

#[inline(always)]
fn nibbles<S: Simd>(s: S, q: &[Words]) -> [S::W; 8] {
    let mut words = [s.words(&q[0]); 8];
    for j in 0..4 {
        let both = s.words(&q[j]);
        words[j] = s.low_nibbles(both);
        words[j + 4] = s.high_nibbles(both);
    }
    words
}

#[inline(always)]
fn blocks<S: Simd, W: Quantised, const M: usize>(
    s: S,
    q: &[Words],
    scales: &[[u16; LANES]],
    least: &[[u16; LANES]],
    x: &[[u32; M]],
) -> [S::V; M] {
    let mut sums = [s.splat(0.0); M];
    for (block, (x, scale)) in x.chunks_exact(BLOCK_WORDS).zip(scales).enumerate() {
        let q = &q[W::WORDS * block..W::WORDS * (block + 1)];
        for line in q {
            s.prefetch(line, AHEAD);
        }
        let dots = dots::<S, W, M>(s, q, x);
        s.prefetch(scale, AHEAD / 4);
        let least = least.get(block);
        if let Some(least) = least {
            s.prefetch(least, AHEAD / 4);
        }
        add_block(s, &dots, scale, least, x, &mut sums);
    }
    sums
}

/// Adds a block's whole numbers by the scales of weights and activations, and what its least weight comes to.
#[inline(always)]
pub fn add_block<S: Simd, const M: usize>(
    s: S,
    dots: &[S::I; M],
    scale: &[u16; LANES],
    least: Option<&[u16; LANES]>,
    x: &[[u32; M]],
    sums: &mut [S::V; M],
) {
    let scale = s.widen_f16(scale);
    for m in 0..M {
        let scale = s.mul(scale, s.splat(f32::from_bits(x[SCALE][m])));
        sums[m] = s.fma(s.floats(dots[m]), scale, sums[m]);
    }
    if let Some(least) = least {
        let least = s.widen_f16(least);
        for m in 0..M {
            sums[m] = s.fma(least, s.splat(f32::from_bits(x[SUM][m])), sums[m]);
        }
    }
}

/// The whole numbers of one block.
#[inline(always)]
fn dots<S: Simd, W: Quantised, const M: usize>(s: S, q: &[Words], x: &[[u32; M]]) -> [S::I; M] {
    let chains = (CHAINS / M).max(1);
    let words = W::words(s, q);
    let mut dots = [[s.ints(0); M]; CHAINS];
    if let Some(start) = W::START {
        for m in 0..M {
            dots[0][m] = s.ints(x[start][m] as i32);
        }
    }
    for word in 0..8 {
        let dots = &mut dots[word % chains];
        for m in 0..M {
            dots[m] = s.dot_i8(dots[m], words[word], x[word][m]);
        }
        s.pin(dots);
    }
    for chain in 1..chains {
        for m in 0..M {
            dots[0][m] = s.add_ints(dots[0][m], dots[chain][m]);
        }
    }
    dots[0]
}
