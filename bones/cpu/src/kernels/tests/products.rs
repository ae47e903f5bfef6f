//! Products of every stored kind.

use super::packed::{KINDS, Kind, Packed};
use super::{bits, kept, noise, operand};
use crate::grid::{every, grid};
use crate::kernels::{Finish, Gate, LinearTile, Part};
use crate::operand::Operand;
use crate::pool::Pool;
use crate::simd::{Isa, LANES};
use proptest::prelude::*;
use std::ops::Range;
use tie_bones_model::description::Activation;

/// Splits the outputs of `parts` into tasks of some panels each.
fn multiply(isa: Isa, parts: &[Part<'_>], x: &Operand, how: (Finish, usize), rows: Range<usize>, y: &mut [f32]) {
    let (finish, panels) = how;
    let width = if rows.is_empty() { 0 } else { y.len() / rows.len() };
    let pool = Pool::new(2).unwrap();
    let over = every(width, panels * LANES);
    grid(&pool, y, width, [&[0, rows.len()], &over], &|tile| {
        let first_panel = tile.columns().start / LANES;
        isa.run(LinearTile { parts, x, rows: rows.clone(), finish, first_panel, y: tile });
    });
}

/// x · wᵀ + b, all rows at once.
fn linear(isa: Isa, w: &Packed, bias: Option<&[f32]>, x: &[f32], panels: usize) -> Vec<f32> {
    let x = operand(isa, x, w.cols, &[w.kind.form()], None);
    let mut y = vec![f32::NAN; x.rows() * w.rows];
    let part = Part { view: w.whole(), bias, form: w.kind.form() };
    multiply(isa, &[part], &x, (Finish::Store, panels), 0..x.rows(), &mut y);
    y
}

/// Σ w · x, and Σ |w · x| for its bounds.
fn sum(w: &Packed, row: usize, cols: Range<usize>, x: &[f64]) -> (f64, f64) {
    let products = cols.zip(x).map(|(col, x)| w.weight(row, col) * x);
    products.fold((0.0, 0.0), |(sum, size), product| (sum + product, size + product.abs()))
}

fn is_near(got: f32, (want, size): (f64, f64)) -> bool {
    (f64::from(got) - want).abs() <= 2e-6 * (size + want.abs())
}

/// Columns that a kind can have.
fn columns(kind: Kind, cols: usize) -> usize {
    if matches!(kind, Kind::F32 | Kind::Bf16) { cols } else { cols.next_multiple_of(32) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn products_are_right_for_odd_shapes(
        rows in prop_oneof![1_usize..50, Just(16), Just(32)], cols in prop_oneof![1_usize..100, Just(1), Just(160)],
        m in prop_oneof![1_usize..21, Just(67)], panels in 1_usize..3,
    ) {
        for (isa, kind) in Isa::available().into_iter().flat_map(|isa| KINDS.map(|kind| (isa, kind))) {
            let w = Packed::new(kind, rows, columns(kind, cols), 1);
            let (x, bias) = (noise(2, m * w.cols), noise(3, rows));
            let y = linear(isa, &w, Some(&bias), &x, panels);
            for (x, y) in x.chunks_exact(w.cols).zip(y.chunks_exact(rows)) {
                let x = kept(kind.form(), x);
                for (row, y) in y.iter().enumerate() {
                    let (want, size) = sum(&w, row, 0..w.cols, &x);
                    let bias = f64::from(bias[row]);
                    prop_assert!(is_near(*y, (want + bias, size + bias.abs())), "{kind:?} {} {y} {want}", isa.name());
                }
            }
        }
    }

    #[test]
    fn parts_of_matrices_are_right(
        first_panel in 0_usize..3, rows in 1_usize..40, first_block in 0_usize..3, cols in 1_usize..70, m in 1_usize..10,
    ) {
        for (isa, kind) in Isa::available().into_iter().flat_map(|isa| KINDS.map(|kind| (isa, kind))) {
            let (first_row, first_col, cols) = (LANES * first_panel, 32 * first_block, columns(kind, cols));
            // Where something follows, the part ends on a block.
            for beyond in [0, 64] {
                let cols = if beyond > 0 { cols.next_multiple_of(32) } else { cols };
                let w = Packed::new(kind, first_row + rows + beyond, first_col + cols + beyond, 4);
                let part = first_col..first_col + cols;
                let (view, form) = (w.view(first_row, part.clone()), kind.form());
                let x = noise(5, m * cols);
                let operand = operand(isa, &x, cols, &[form], None);
                let mut y = vec![f32::NAN; m * rows];
                multiply(isa, &[Part { view, bias: None, form }], &operand, (Finish::Store, 1), 0..m, &mut y);
                for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact(rows)) {
                    let x = kept(form, x);
                    for (row, y) in y.iter().enumerate() {
                        prop_assert!(is_near(*y, sum(&w, first_row + row, part.clone(), &x)), "{kind:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_of_products_does_not_depend_on_its_company(rows in 1_usize..40, cols in 1_usize..140, panels in 1_usize..3) {
        for (isa, kind) in Isa::available().into_iter().flat_map(|isa| KINDS.map(|kind| (isa, kind))) {
            let w = Packed::new(kind, rows, columns(kind, cols), 6);
            let x = noise(7, 70 * w.cols);
            let alone: Vec<f32> = x.chunks_exact(w.cols).flat_map(|x| linear(isa, &w, None, x, 3)).collect();
            for m in (1..=20).chain([64, 65, 70]) {
                let together = linear(isa, &w, None, &x[(70 - m) * w.cols..], panels);
                prop_assert_eq!(bits(&together), bits(&alone[(70 - m) * rows..]), "{:?} {} {}", kind, isa.name(), m);
            }
        }
    }

    #[test]
    fn a_range_of_rows_gives_the_same_bits(m in 1_usize..40, first in 0_usize..5, cols in 1_usize..70) {
        let first = (8 * first).min(m / 8 * 8);
        for (isa, kind) in Isa::available().into_iter().flat_map(|isa| KINDS.map(|kind| (isa, kind))) {
            let w = Packed::new(kind, 19, columns(kind, cols), 8);
            let x = noise(9, m * w.cols);
            let all = linear(isa, &w, None, &x, 2);
            let x = operand(isa, &x, w.cols, &[kind.form()], None);
            let mut some = vec![f32::NAN; (m - first) * 19];
            let part = Part { view: w.whole(), bias: None, form: kind.form() };
            multiply(isa, &[part], &x, (Finish::Store, 1), first..m, &mut some);
            prop_assert_eq!(bits(&some), bits(&all[first * 19..]));
        }
    }

    #[test]
    fn finishing_at_once_gives_the_bits_of_doing_so_afterwards(rows in 1_usize..40, m in 1_usize..20) {
        for (isa, kind) in Isa::available().into_iter().flat_map(|isa| KINDS.map(|kind| (isa, kind))) {
            // Gate and up may be stored differently.
            let (gate, up) = (Packed::new(kind, rows, 64, 10), Packed::new(KINDS[m % 5], rows, 64, 11));
            let (x, bias) = (noise(12, m * 64), noise(13, rows));
            let (gates, ups) = (linear(isa, &gate, Some(&bias), &x, 1), linear(isa, &up, None, &x, 2));
            let parts = [(&gate, Some(&bias[..])), (&up, None)]
                .map(|(w, bias)| Part { view: w.whole(), bias, form: w.kind.form() });
            let x = operand(isa, &x, 64, &parts.map(|part| part.form), None);
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let (mut at_once, mut afterwards) = (vec![f32::NAN; m * rows], vec![f32::NAN; m * rows]);
                multiply(isa, &parts, &x, (Finish::Gate(activation), 2), 0..m, &mut at_once);
                isa.run(Gate { activation, gate: &gates, up: &ups, out: &mut afterwards });
                prop_assert_eq!(bits(&at_once), bits(&afterwards));
            }
            let mut added = noise(14, m * rows);
            let want: Vec<f32> = added.iter().zip(&gates).map(|(y, sum)| y + sum).collect();
            multiply(isa, &parts[..1], &x, (Finish::Add, 1), 0..m, &mut added);
            prop_assert_eq!(bits(&added), bits(&want));
        }
    }
}

#[test]
fn activations_of_several_passes_give_the_same_bits() {
    // A pass holds 24 rows of so many columns in f32, and more in the other forms.
    let (cols, m) = (4096, 90);
    let x = noise(18, m * cols);
    for (isa, kind) in Isa::available().into_iter().flat_map(|isa| KINDS.map(|kind| (isa, kind))) {
        let w = Packed::new(kind, 17, cols, 19);
        let y = linear(isa, &w, None, &x, 2);
        for row in [0, 23, 24, 47, 48, 63, 64, m - 1] {
            let x = &x[row * cols..(row + 1) * cols];
            let got = &y[row * 17..(row + 1) * 17];
            assert_eq!(bits(got), bits(&linear(isa, &w, None, x, 1)), "{kind:?} {}", isa.name());
            assert!(is_near(got[16], sum(&w, 16, 0..cols, &kept(kind.form(), x))), "{kind:?} {}", isa.name());
        }
    }
}

#[test]
fn no_rows_give_nothing() {
    for (isa, kind) in Isa::available().into_iter().flat_map(|isa| KINDS.map(|kind| (isa, kind))) {
        assert!(linear(isa, &Packed::new(kind, 5, 32, 15), None, &[], 1).is_empty());
    }
}

#[test]
fn what_is_not_finite_reaches_every_result_of_its_row_and_no_other() {
    for (isa, kind) in Isa::available().into_iter().flat_map(|isa| KINDS.map(|kind| (isa, kind))) {
        let w = Packed::new(kind, 33, 96, 16);
        for (place, bad) in [(0, f32::NAN), (40, f32::INFINITY), (95, f32::NEG_INFINITY)] {
            for m in [1, 3, 9] {
                let mut x = noise(17, m * 96);
                let clean = linear(isa, &w, None, &x, 1);
                x[(m - 1) * 96 + place] = bad;
                let y = linear(isa, &w, None, &x, 1);
                let (others, hit) = y.split_at((m - 1) * 33);
                assert!(hit.iter().all(|y| !y.is_finite()), "{kind:?} {} {bad}", isa.name());
                assert_eq!(bits(others), bits(&clean[..(m - 1) * 33]));
            }
        }
    }
}
