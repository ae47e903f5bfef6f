//! Kernels against sums in 64 bits, for odd shapes, on every instruction set.

use super::*;
use crate::cache::Pages;
use crate::grid::{every, grid};
use crate::matrix::View;
use crate::pool::Pool;
use crate::simd::Isa;
use proptest::prelude::*;
use tie_bones_model::backend::{CacheShape, KvDtype};

/// Numbers between −1 and 1 that look random.
fn noise(seed: u32, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / 8_388_608.0 - 1.0
        })
        .collect()
}

/// 16-bit floats between 2⁻⁶ and 2⁻⁵.
fn halves(seed: u32, len: usize) -> Vec<u16> {
    noise(seed, len).iter().map(|x| 0x2400 | ((x + 1.0) * 511.0) as u16).collect()
}

struct Stored {
    floats: Vec<f32>,
    bf16: Vec<u16>,
    bytes: Vec<u8>,
    signed: Vec<i8>,
    scale: Vec<u16>,
    min: Vec<u16>,
}

impl Stored {
    fn new(rows: usize, cols: usize) -> Self {
        let floats = noise(1, rows * cols);
        Self {
            bf16: floats.iter().map(|x| (x.to_bits() >> 16) as u16).collect(),
            bytes: floats.iter().map(|x| (x * 127.0) as i8 as u8).take(rows * cols / 2).collect(),
            signed: floats.iter().map(|x| (x * 127.0) as i8).collect(),
            scale: halves(2, rows * cols / 32),
            min: halves(3, rows * cols / 32).iter().map(|h| h | 0x8000).collect(),
            floats,
        }
    }

    fn views(&self, cols: usize) -> Vec<View<'_>> {
        let mut views = vec![View::F32(&self.floats), View::Bf16(&self.bf16)];
        if cols % 32 == 0 {
            let (q, scale) = (&self.bytes, &self.scale);
            views.push(View::Int8 { q: &self.signed, scale });
            views.push(View::Int4 { q, scale, min: None });
            views.push(View::Int4 { q, scale, min: Some(&self.min) });
        }
        views
    }
}

fn linear(isa: Isa, view: View<'_>, (rows, cols): (usize, usize), x: &[f32], step: usize) -> Vec<f32> {
    let m = x.len() / cols;
    let wide = cols.next_multiple_of(32);
    let mut padded = vec![0.0; m * wide];
    for (from, to) in x.chunks_exact(cols).zip(padded.chunks_exact_mut(wide)) {
        to[..cols].copy_from_slice(from);
    }
    let bias = noise(9, rows);
    let mut y = vec![0.0; m * rows];
    grid(&Pool::new(1).unwrap(), &mut y, rows, &[0, m], step, &|tile| {
        isa.run(LinearTile { view, rows, cols, x: &padded, bias: Some(&bias), y: tile });
    });
    y
}

fn widened(isa: Isa, view: View<'_>, (rows, cols): (usize, usize)) -> Vec<f32> {
    let mut out = vec![0.0; rows * cols];
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        isa.run(WidenRow { view, cols, row, out });
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn products_are_right_for_odd_shapes(
        rows in 1_usize..19, cols in prop_oneof![1_usize..100, Just(32), Just(64), Just(96), Just(160)],
        m in prop_oneof![1_usize..10, Just(64), Just(67)], step in 1_usize..6,
    ) {
        let stored = Stored::new(rows, cols);
        let x = noise(4, m * cols);
        let bias = noise(9, rows);
        for isa in Isa::available() {
            for view in stored.views(cols) {
                let weights = widened(isa, view, (rows, cols));
                let y = linear(isa, view, (rows, cols), &x, step * 4);
                for (i, y) in y.iter().enumerate() {
                    let (x, w) = (&x[i / rows * cols..][..cols], &weights[i % rows * cols..][..cols]);
                    let sum: f64 = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
                    prop_assert!((sum + f64::from(bias[i % rows]) - f64::from(*y)).abs() < 1e-4);
                }
            }
        }
    }

    #[test]
    fn products_do_not_depend_on_their_number(rows in 1_usize..10, blocks in 1_usize..5, step in 1_usize..4) {
        let cols = 32 * blocks;
        let stored = Stored::new(rows, cols);
        let x = noise(5, 70 * cols);
        for isa in Isa::available() {
            for view in stored.views(cols) {
                let one_by_one: Vec<f32> =
                    x.chunks_exact(cols).flat_map(|x| linear(isa, view, (rows, cols), x, rows)).collect();
                for m in [2, 3, 4, 5, 8, 64, 65, 70] {
                    let together = linear(isa, view, (rows, cols), &x[..m * cols], step * 4);
                    prop_assert_eq!(&together[..], &one_by_one[..m * rows]);
                }
            }
        }
    }

    #[test]
    fn norms_and_gates_are_right_for_odd_widths(len in 1_usize..70) {
        let (x, w) = (noise(6, len), noise(7, len));
        let mean = x.iter().map(|x| f64::from(x * x)).sum::<f64>() / len as f64;
        for isa in Isa::available() {
            let (mut out, mut gate) = (vec![0.0; len], x.clone());
            isa.run(NormRow { x: &x, weight: &w, eps: 1e-5, out: &mut out });
            isa.run(Gate { gate: &mut gate, up: &w });
            for i in 0..len {
                let (x, w) = (f64::from(x[i]), f64::from(w[i]));
                prop_assert!((f64::from(out[i]) - x / (mean + 1e-5).sqrt() * w).abs() < 1e-5);
                prop_assert!((f64::from(gate[i]) - x / (1.0 + (-x).exp()) * w).abs() < 1e-6);
            }
        }
    }

    #[test]
    fn attention_is_right_for_odd_heads_and_blocks(
        head_dim in 1_usize..90, block_size in 1_usize..40, seen in 1_usize..70, rows in 1_usize..5,
    ) {
        let block_count = seen.div_ceil(block_size);
        let shape = CacheShape {
            block_count, block_size_tokens: block_size, layer_count: 2, kv_heads: 2, head_dim, dtype: KvDtype::F32,
        };
        let mut pages = Pages::<f32>::new(shape).unwrap();
        let (k, v) = (noise(1, seen * head_dim), noise(2, seen * head_dim));
        // Blocks in reverse order.
        let blocks: Vec<u32> = (0..block_count as u32).rev().collect();
        for (position, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
            pages.put((1, 1), (blocks[position / block_size], position % block_size), k, v);
        }
        let q = noise(3, rows * head_dim);
        let limits: Vec<usize> = (0..rows).map(|row| seen.saturating_sub(rows - 1 - row).max(1)).collect();
        let padded = head_dim.next_multiple_of(16);
        for isa in Isa::available() {
            let mut out = vec![0.0; rows * padded];
            let cache = pages.layer(1, 1);
            let mut scores = vec![f32::NAN; 7];
            isa.run(AttendTile { q: &q, limits: &limits, blocks: &blocks, cache, scores: &mut scores, out: &mut out });
            for row in 0..rows {
                let dot = |p: usize| (0..head_dim).map(|d| f64::from(q[row * head_dim + d] * k[p * head_dim + d])).sum();
                let shares: Vec<f64> = (0..limits[row]).map(|p| f64::exp(dot(p))).collect();
                let total: f64 = shares.iter().sum();
                for d in 0..head_dim {
                    let want: f64 =
                        shares.iter().enumerate().map(|(p, s)| s / total * f64::from(v[p * head_dim + d])).sum();
                    prop_assert!((f64::from(out[row * padded + d]) - want).abs() < 1e-4);
                }
            }
        }
    }
}

#[test]
fn grids_of_one_row_are_cut_by_columns_only() {
    assert_eq!(every(1, 64), [0, 1]);
    assert_eq!(every(0, 64), [0]);
}
