//! Attention to the cache against softmax in 64 bits.

use super::cache::{DTYPES, kept, used_pages};
use super::{bits, noise};
use crate::cache::Pages;
use crate::kernels::{CHUNK, Merge, PrepareTile, SeeChunk, State, state_len};
use crate::operand::Form;
use crate::simd::{Isa, LANES};
use proptest::prelude::*;
use std::ops::Range;
use tie_bones_model::backend::{CacheShape, KvDtype};

pub const SIZES: [usize; 5] = [1, 4, 16, 24, 64];

/// One sequence's keys and values, and where they are cached.
pub struct Sequence {
    k: Vec<f32>,
    v: Vec<f32>,
    pub blocks: Vec<u32>,
}

/// Where and how a test attends.
#[derive(Clone, Copy)]
pub struct How {
    pub shape: CacheShape,
    pub scale: f32,
    pub softcap: Option<f32>,
}

impl Sequence {
    /// Writes random keys and values of `len` tokens for every head of layer 1.
    pub fn new(pages: &mut Pages, seed: u32, len: usize, blocks: Vec<u32>) -> Self {
        let CacheShape { block_size_tokens: size, kv_heads, head_dim, .. } = *pages.shape();
        let width = kv_heads * head_dim;
        let new = Self { k: noise(seed, len * width), v: noise(seed + 1, len * width), blocks };
        for (position, (k, v)) in new.k.chunks_exact(width).zip(new.v.chunks_exact(width)).enumerate() {
            let place = (new.blocks[position / size], position % size);
            for (head, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
                pages.put((1, head), place, k, v);
            }
        }
        new
    }

    /// softmax(q · k · scale) · v over what is seen.
    pub fn attend(&self, how: &How, head: usize, q: &[f32], seen: Range<usize>) -> Vec<f64> {
        let (dim, dtype) = (how.shape.head_dim, how.shape.dtype);
        let at = |position: usize, d: usize| (position * how.shape.kv_heads + head) * dim + d;
        let product = |position, d| f64::from(kept(dtype, q[d] * how.scale) * kept(dtype, self.k[at(position, d)]));
        let scores: Vec<f64> = seen.clone().map(|position| (0..dim).map(|d| product(position, d)).sum()).collect();
        let capped = |x: &f64| how.softcap.map_or(*x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh());
        let scores: Vec<f64> = scores.iter().map(capped).collect();
        let highest = scores.iter().copied().fold(f64::MIN, f64::max);
        let shares: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
        let value = |position, d| f64::from(kept(dtype, self.v[at(position, d)]));
        let weighed = |d| seen.clone().zip(&shares).map(|(position, share)| share * value(position, d)).sum::<f64>();
        (0..dim).map(|d| weighed(d) / shares.iter().sum::<f64>()).collect()
    }
}

/// How far results may be off: shares are cached values' type too.
fn bound(dtype: KvDtype) -> f64 {
    match dtype {
        KvDtype::F32 => 1e-5,
        KvDtype::Bf16 => 4e-3,
    }
}

pub fn is_near(got: &[f32], want: &[f64], dtype: KvDtype) -> bool {
    got.iter().zip(want).all(|(got, want)| (f64::from(*got) - want).abs() < bound(dtype))
}

/// Rows of results by way of chunks of `chunk` panels, merged in order.
fn see(
    isa: Isa,
    how: &How,
    pages: &Pages,
    (head, blocks): (usize, &[u32]),
    x: &[f32],
    seen: &[Range<usize>],
    chunk: usize,
) -> Vec<f32> {
    let (dim, dtype, height) = (how.shape.head_dim, how.shape.dtype, seen.len());
    let form = if dtype == KvDtype::F32 { Form::F32 } else { Form::Bf16 };
    let mut q = vec![0; height * form.words(dim)];
    isa.run(PrepareTile { form, x, cols: dim, norm: None, scratch: &mut Vec::new(), words: &mut q, height });
    let cache = pages.layer(1, head);
    let all = blocks.len() * cache.counts.slot_panels;
    let len = state_len(height, cache.counts.dim_panels);
    let (mut total, mut part) = (vec![f32::NAN; len], vec![f32::NAN; len]);
    let mut total = State::over(&mut total, height);
    total.clear();
    for first in (0..all).step_by(chunk) {
        let (panels, softcap) = (first..all.min(first + chunk), how.softcap);
        let state = State::over(&mut part, height);
        isa.run(SeeChunk { q: &q, head_dim: dim, seen, blocks, cache, dtype, softcap, panels, state });
        isa.run(Merge { into: &mut total, from: &State::over(&mut part, height) });
    }
    let rows = total.values.chunks_exact(cache.counts.dim_panels).zip(total.sum.iter());
    let divide = |(values, sum): (&[[f32; LANES]], &[f32; LANES])| -> Vec<f32> {
        values.as_flattened()[..dim].iter().map(|value| value / sum.iter().sum::<f32>()).collect()
    };
    rows.flat_map(divide).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn rows_see_their_range_whatever_the_blocks_and_chunks(
        head_dim in 1_usize..90, size in 0_usize..5, context in 1_usize..90, height in 0_usize..6,
        window in prop_oneof![Just(1000_usize), 1_usize..40], softcap in prop_oneof![Just(None), Just(Some(2.0_f32))],
    ) {
        let (size, height) = (SIZES[size], [1, 2, 3, 4, 8, 16][height]);
        let block_count = context.div_ceil(size) + 1;
        for (isa, dtype) in Isa::available().into_iter().flat_map(|isa| DTYPES.map(|dtype| (isa, dtype))) {
            let shape =
                CacheShape { block_count, block_size_tokens: size, layer_count: 2, kv_heads: 2, head_dim, dtype };
            let (how, mut pages) = (How { shape, scale: 0.9, softcap }, used_pages(shape));
            // From the largest index down.
            let blocks: Vec<u32> = (1..block_count as u32).rev().collect();
            let sequence = Sequence::new(&mut pages, 1, context, blocks);
            let x = noise(3, height * head_dim);
            let q: Vec<f32> = x.iter().map(|x| x * how.scale).collect();
            let seen: Vec<Range<usize>> = (0..height)
                .map(|row| context.saturating_sub(row).max(1))
                .map(|end| end.saturating_sub(window)..end)
                .collect();
            let blocks = (1, &sequence.blocks[..]);
            let straight = see(isa, &how, &pages, blocks, &q, &seen, 1000);
            let chunked = see(isa, &how, &pages, blocks, &q, &seen, CHUNK);
            for (row, seen) in seen.iter().enumerate() {
                let at = row * head_dim..(row + 1) * head_dim;
                let want = sequence.attend(&how, 1, &x[at.clone()], seen.clone());
                prop_assert!(is_near(&straight[at.clone()], &want, dtype), "{dtype:?} {}", isa.name());
                prop_assert!(is_near(&chunked[at.clone()], &want, dtype), "{dtype:?} {}", isa.name());
                // Nor does a row depend on the others of its tile.
                let alone = see(isa, &how, &pages, blocks, &q[at.clone()], std::slice::from_ref(seen), CHUNK);
                prop_assert_eq!(bits(&alone), bits(&chunked[at]));
            }
        }
    }
}
