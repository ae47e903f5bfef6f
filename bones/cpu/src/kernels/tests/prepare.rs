//! Activations in every form, and rows of tables.

use super::packed::{KINDS, Packed};
use super::{noise, operand, quantised};
use crate::kernels::embed;
use crate::operand::{BLOCK_WORDS, FORMS, Form, MINUS_8, MINUS_128, Operand, SCALE, SUM, TILE, run};
use crate::simd::{Isa, to_bf16};
use proptest::prelude::*;

/// The words of one row; of padding too, where `row` is beyond the last.
fn row_of(isa: Isa, operand: &Operand, form: Form, row: usize) -> Vec<u32> {
    let tile = operand.tile(form, row / TILE * TILE);
    let runs = tile.words.chunks(run(form, operand.cols(), isa.has_matrix_unit()));
    runs.skip(row % TILE).step_by(tile.height).flatten().copied().collect()
}

/// Words of a row, made plainly.
fn words(form: Form, row: &[f32]) -> Vec<u32> {
    match form {
        Form::F32 => row.iter().map(|x| x.to_bits()).collect(),
        Form::Bf16 => row.chunks(2).map(|x| x.iter().rev().fold(0, |w, &x| w << 16 | u32::from(to_bf16(x)))).collect(),
        Form::Bytes => row.chunks(32).flat_map(block).collect(),
    }
}

fn block(x: &[f32]) -> Vec<u32> {
    let (scale, q) = quantised(x);
    let q: Vec<i8> = q.iter().map(|&q| q as i8).collect();
    let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
    let mut words: Vec<u32> = q.chunks(4).map(|q| u32::from_le_bytes([0, 1, 2, 3].map(|i| q[i] as u8))).collect();
    words.resize(BLOCK_WORDS, 0);
    words[SCALE] = scale.to_bits();
    words[SUM] = (scale * sum as f32).to_bits();
    words[MINUS_8] = (-8 * sum) as u32;
    words[MINUS_128] = (-128 * sum) as u32;
    words
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_form_is_exact_and_padding_is_zero(rows in 1_usize..20, cols in 1_usize..100, size in -100_i32..120) {
        for (isa, form) in Isa::available().into_iter().flat_map(|isa| FORMS.map(|form| (isa, form))) {
            let cols = if form == Form::Bytes { cols.next_multiple_of(32) } else { cols };
            let mut x: Vec<f32> = noise(1, rows * cols).iter().map(|x| x * 2_f32.powi(size)).collect();
            // A block of zeros.
            x[..cols.min(32)].fill(0.0);
            let operand = operand(isa, &x, cols, &[form], None);
            for (row, x) in x.chunks_exact(cols).enumerate() {
                prop_assert_eq!(row_of(isa, &operand, form, row), words(form, x), "{:?} {}", form, isa.name());
            }
            let last = operand.tile(form, (rows - 1) / TILE * TILE);
            for row in last.rows..last.height {
                prop_assert!(row_of(isa, &operand, form, last.first + row).iter().all(|&word| word == 0));
            }
        }
    }

    #[test]
    fn quantising_errs_by_half_a_step(cols in 1_usize..4, seed in 0_u32..1000) {
        let x = noise(seed, 32 * cols);
        for isa in Isa::available() {
            let operand = operand(isa, &x, 32 * cols, &[Form::Bytes], None);
            let words = row_of(isa, &operand, Form::Bytes, 0);
            for (x, words) in x.chunks_exact(32).zip(words.chunks_exact(BLOCK_WORDS)) {
                let scale = f32::from_bits(words[SCALE]);
                let q: Vec<i8> = words[..8].iter().flat_map(|word| word.to_le_bytes().map(|q| q as i8)).collect();
                prop_assert_eq!(q.iter().map(|q| q.unsigned_abs()).max(), Some(127));
                for (x, q) in x.iter().zip(q) {
                    prop_assert!((x - scale * f32::from(q)).abs() <= 0.50001 * scale);
                }
            }
        }
    }

    #[test]
    fn norms_are_taken_first(rows in 1_usize..10, blocks in 1_usize..4) {
        let cols = 32 * blocks;
        let (x, weight) = (noise(2, rows * cols), noise(3, cols));
        for isa in Isa::available() {
            let operand = operand(isa, &x, cols, &FORMS, Some((&weight, 1e-5)));
            for (row, x) in x.chunks_exact(cols).enumerate() {
                let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / cols as f64;
                let normed = row_of(isa, &operand, Form::F32, row);
                let normed: Vec<f32> = normed.into_iter().map(f32::from_bits).collect();
                for ((x, weight), normed) in x.iter().zip(&weight).zip(&normed) {
                    let want = f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*weight);
                    prop_assert!((want - f64::from(*normed)).abs() < 1e-6 * want.abs().max(1e-3));
                }
                for form in [Form::Bf16, Form::Bytes] {
                    prop_assert_eq!(row_of(isa, &operand, form, row), words(form, &normed));
                }
            }
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_company(rows in 1_usize..20, blocks in 1_usize..4) {
        let cols = 32 * blocks;
        let (x, weight) = (noise(4, rows * cols), noise(5, cols));
        for isa in Isa::available() {
            let norm = Some((&weight[..], 1e-6));
            let together = operand(isa, &x, cols, &FORMS, norm);
            for (row, x) in x.chunks_exact(cols).enumerate() {
                for form in FORMS {
                    // Nor on the other forms that are wanted.
                    let alone = operand(isa, x, cols, &[form], norm);
                    prop_assert_eq!(row_of(isa, &together, form, row), row_of(isa, &alone, form, 0));
                }
            }
        }
    }

    #[test]
    fn rows_of_tables_are_looked_up(rows in 1_usize..40, cols in 1_usize..100, scale in 0.5_f32..20.0) {
        for kind in KINDS {
            let cols = if kind.form() == Form::Bytes { cols.next_multiple_of(32) } else { cols };
            let table = Packed::new(kind, rows, cols, 6);
            for row in [0, rows / 2, rows - 1] {
                let mut out = vec![f32::NAN; cols];
                embed(&table.whole(), row, scale, &mut out);
                for (col, out) in out.into_iter().enumerate() {
                    let want = table.weight(row, col) * f64::from(scale);
                    prop_assert!((f64::from(out) - want).abs() <= 3e-7 * f64::from(scale), "{kind:?} {out} {want}");
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_so_in_its_block() {
    for isa in Isa::available() {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = noise(7, 96);
            x[40] = bad;
            let operand = operand(isa, &x, 96, &FORMS, None);
            assert_eq!(f32::from_bits(row_of(isa, &operand, Form::F32, 0)[40]).to_bits(), bad.to_bits());
            let half = f32::from_bits(row_of(isa, &operand, Form::Bf16, 0)[20] << 16);
            assert!(half == bad || half.is_nan() && bad.is_nan());
            let bytes = row_of(isa, &operand, Form::Bytes, 0);
            let scales: Vec<f32> = bytes.chunks_exact(BLOCK_WORDS).map(|words| f32::from_bits(words[SCALE])).collect();
            assert!(scales[0].is_finite() && !scales[1].is_finite() && scales[2].is_finite());
        }
    }
}
