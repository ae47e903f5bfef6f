//! Multiplies all rows of activations with some panels of weights, and finishes the results.
//!
//! Activations are taken in passes that stay in the second-level cache; within a pass each panel of weights is read once,
//! and a small group of panels is multiplied with tile after tile. One pass holds every row of an ordinary decoding batch, so that such a
//! batch reads each weight once.

use crate::grid::Tile as OutTile;
use crate::kernels::product::{Products, product};
use crate::kernels::rows::activated;
use crate::kernels::tiles::OnUnit;
use crate::lines::OnLine;
use crate::matrix::View;
use crate::operand::{Form, Operand, TILE, run};
use crate::simd::{Kernel, LANES, Simd};
use bytemuck::cast_slice_mut;
use std::ops::Range;
use tie_bones_model::description::Activation;

/// Bytes of activations that a pass may take.
const PASS_BYTES: usize = 384 << 10;

/// Bytes of weights, a byte an element, that tile after tile is multiplied with: what the first-level cache holds beside
/// a tile.
const GROUP_BYTES: usize = 32 << 10;

/// What becomes of the products.
#[derive(Clone, Copy)]
pub enum Finish {
    /// `y = products`
    Store,
    /// `y += products`
    Add,
    /// `y = act(first products) · second products`
    Gate(Activation),
}

/// A matrix with its bias.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// The weights.
    pub view: View<'a>,
    /// Added to each row of products.
    pub bias: Option<&'a [f32]>,
    /// How it reads activations.
    pub form: Form,
}

/// Some columns of y.
pub struct LinearTile<'a, 'y> {
    /// One matrix, or gate and up.
    pub parts: &'a [Part<'a>],
    /// Activations.
    pub x: &'a Operand,
    /// Rows of x that are multiplied, from the beginning of a tile on; the first becomes row 0 of y.
    pub rows: Range<usize>,
    /// What becomes of the products.
    pub finish: Finish,
    /// The matrix's row at which y begins, in panels.
    pub first_panel: usize,
    /// All rows of some columns of the result.
    pub y: &'a mut OutTile<'y>,
}

impl Kernel for LinearTile<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let panels = self.y.columns().len().div_ceil(LANES);
        let words = self.parts.iter().map(|part| part.form.words(self.x.cols())).max().unwrap_or(1).max(1);
        let pass = (PASS_BYTES / (4 * words)).max(TILE) / TILE * TILE;
        let group = (GROUP_BYTES / (4 * LANES * words * self.parts.len())).max(1);
        let mut products = OnLine([[[[0.0; LANES]; TILE]; 2]; 2]);
        let mut unit = s.matrix_unit().map(OnUnit::new);
        let all = self.rows.clone();
        for begin in all.clone().step_by(pass) {
            let end = all.end.min(begin + pass);
            for first_panel in (0..panels).step_by(group) {
                let group = first_panel..panels.min(first_panel + group);
                for first in (begin..end).step_by(2 * TILE) {
                    let tiles = first..end.min(first + 2 * TILE);
                    for panel in group.clone() {
                        self.multiply(s, &mut unit, panel, tiles.clone(), &mut products.0);
                        for (first, products) in tiles.clone().step_by(TILE).zip(&mut products.0) {
                            let rows = first - all.start..tiles.end.min(first + TILE) - all.start;
                            self.finish(s, rows, panel * LANES, products);
                        }
                    }
                }
            }
        }
    }
}

impl LinearTile<'_, '_> {
    /// One panel of each part times the rows of one or two tiles.
    #[inline(always)]
    fn multiply<S: Simd>(
        &self,
        s: S,
        unit: &mut Option<OnUnit>,
        panel: usize,
        rows: Range<usize>,
        [first, second]: &mut [[Products; 2]; 2],
    ) {
        let panel = self.first_panel + panel;
        for ((part, first), second) in self.parts.iter().zip(first).zip(second) {
            let tile = self.x.tile(part.form, rows.start);
            let next = if rows.len() > TILE { Some(self.x.tile(part.form, rows.start + TILE)) } else { None };
            match (&mut *unit, &part.view) {
                (Some(unit), View::Bf16(w)) if run(part.form, self.x.cols(), true) > 1 => match next {
                    Some(next) if next.height == TILE => {
                        unit.product(s, w.of(panel), &[tile, next], [first, second]);
                    }
                    _ => {
                        unit.product(s, w.of(panel), &[tile], [first, second]);
                        if let Some(next) = next {
                            unit.product(s, w.of(panel), &[next], [second, first]);
                        }
                    }
                },
                _ => {
                    product(s, &part.view, panel, &tile, first);
                    if let Some(next) = next {
                        product(s, &part.view, panel, &next, second);
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S, rows: Range<usize>, column: usize, [first, second]: &mut [Products; 2]) {
        let count = LANES.min(self.y.columns().len() - column);
        for (part, products) in self.parts.iter().zip([&mut *first, &mut *second]) {
            if let Some(bias) = part.bias {
                let bias = &bias[self.first_panel * LANES + column..][..count];
                for sums in &mut products[..rows.len()] {
                    sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += bias);
                }
            }
        }
        for ((row, first), second) in rows.zip(first).zip(second) {
            let y = &mut self.y.row(row)[column..column + count];
            match self.finish {
                Finish::Store => put(s, y, first),
                Finish::Add => y.iter_mut().zip(&*first).for_each(|(y, sum)| *y += sum),
                Finish::Gate(activation) => {
                    let gate = s.load(first);
                    let value = s.mul(activated(s, activation, gate), s.load(second));
                    s.store(value, first);
                    put(s, y, first);
                }
            }
        }
    }
}

#[inline(always)]
fn put<S: Simd>(s: S, y: &mut [f32], sums: &[f32; LANES]) {
    if y.len() == LANES {
        s.store(s.load(sums), &mut cast_slice_mut(y)[0]);
    } else {
        y.copy_from_slice(&sums[..y.len()]);
    }
}
