//! Linear layers of a whole step: activations are prepared once, outputs are split into tasks by panels.

use crate::backend::{Cpu, CpuError};
use crate::grid::grid;
use crate::kernels::{Finish, LinearTile, Part, PrepareTile};
use crate::matrix::{Matrix, Vector};
use crate::operand::{FORMS, Form, Operand, TILE};
use crate::simd::LANES;
use crate::tensor::Tensor;
use bytemuck::cast_slice_mut;
use std::cell::RefCell;
use std::ops::Range;
use tie_bones_model::backend::{Linear, LowRank};

thread_local! {
    static SCRATCH: RefCell<Vec<f32>> = RefCell::default();
}

/// A layer's matrix and bias as kernels take them.
fn part(layer: &Linear<Cpu>) -> Part<'_> {
    Part { view: layer.weight.view(), bias: layer.bias.as_ref().map(Vector::as_slice), form: layer.weight.form() }
}

impl Cpu {
    /// Puts x, normed where `norm` is given, into the forms that `readers` read.
    pub(crate) fn fill(
        &self,
        x: (&[f32], usize),
        norm: Option<(&[f32], f32)>,
        readers: &[&Matrix],
        out: &mut Operand,
    ) -> Result<(), CpuError> {
        let (x, cols) = x;
        let rows = x.len() / cols;
        let wanted = |form: Form| readers.iter().any(|matrix| matrix.form() == form);
        out.reshape(rows, cols, wanted).ok_or(CpuError::Memory("activations"))?;
        for form in FORMS.into_iter().filter(|&form| wanted(form)) {
            let prepare = |first: usize, words: &mut [u32]| {
                let x = &x[first * cols..rows.min(first + TILE) * cols];
                let height = words.len() / form.words(cols).max(1);
                SCRATCH.with_borrow_mut(|scratch| {
                    self.isa.run(PrepareTile { form, x, cols, norm, scratch, words, height });
                });
            };
            let width = TILE * form.words(cols);
            let (full, rest) = out.words_mut(form).split_at_mut(rows / TILE * width);
            let down: Vec<usize> = (0..=rows / TILE).collect();
            grid(&self.pool, cast_slice_mut(full), width, [&down, &[0, width]], &|tile| {
                let index = tile.rows().start;
                prepare(index * TILE, cast_slice_mut(tile.row(index)));
            });
            if !rest.is_empty() {
                prepare(rows / TILE * TILE, rest);
            }
        }
        Ok(())
    }

    /// `out = [x · w₀ᵀ + b₀ | …]`
    pub(crate) fn side_by_side(&self, x: &Operand, layers: &[&Linear<Cpu>], out: &mut Tensor) {
        let parts: Vec<Part<'_>> = layers.iter().map(|layer| part(layer)).collect();
        let mut begins = vec![0];
        for layer in layers {
            begins.push(begins[begins.len() - 1] + layer.weight.rows());
        }
        let over = self.cuts(&begins);
        let (width, rows) = (out.width(), x.rows());
        grid(&self.pool, out.data_mut(), width, [&[0, rows], &over], &|tile| {
            let column = tile.columns().start;
            let index = begins.partition_point(|&begin| begin <= column) - 1;
            let first_panel = (column - begins[index]) / LANES;
            let parts = &parts[index..=index];
            self.isa.run(LinearTile { parts, x, rows: 0..rows, finish: Finish::Store, first_panel, y: tile });
        });
    }

    /// One result column for each output of the layers, which have equally many.
    pub(crate) fn together(&self, x: &Operand, layers: &[&Linear<Cpu>], finish: Finish, out: &mut Tensor) {
        let parts: Vec<Part<'_>> = layers.iter().map(|layer| part(layer)).collect();
        let over = self.cuts(&[0, layers[0].weight.rows()]);
        let (width, rows) = (out.width(), x.rows());
        grid(&self.pool, out.data_mut(), width, [&[0, rows], &over], &|tile| {
            let first_panel = tile.columns().start / LANES;
            self.isa.run(LinearTile { parts: &parts, x, rows: 0..rows, finish, first_panel, y: tile });
        });
    }

    /// `out[rows, column..] += (x[rows] · aᵀ) · bᵀ`
    pub(crate) fn low_rank(
        &self,
        x: &Operand,
        rows: Range<usize>,
        pair: &LowRank<Matrix>,
        out: &mut Tensor,
        column: usize,
    ) -> Result<(), CpuError> {
        let tiles = rows.start / TILE * TILE..x.rows().min(rows.end.next_multiple_of(TILE));
        let narrow = self.product(x, tiles.clone(), &pair.a)?;
        let mut operand = Operand::new().ok_or(CpuError::Memory("activations"))?;
        self.fill((narrow.data(), narrow.width()), None, &[&pair.b], &mut operand)?;
        let added = self.product(&operand, 0..operand.rows(), &pair.b)?;
        let width = out.width();
        for row in rows {
            let out = &mut out.data_mut()[row * width + column..][..added.width()];
            out.iter_mut().zip(added.row(row - tiles.start)).for_each(|(out, added)| *out += added);
        }
        Ok(())
    }

    /// `x[rows] · wᵀ`; the first row begins a tile.
    fn product(&self, x: &Operand, rows: Range<usize>, w: &Matrix) -> Result<Tensor, CpuError> {
        let mut out = Tensor::new(w.rows())?;
        out.resize(rows.len())?;
        let parts = [Part { view: w.view(), bias: None, form: w.form() }];
        let over = self.cuts(&[0, w.rows()]);
        grid(&self.pool, out.data_mut(), w.rows(), [&[0, rows.len()], &over], &|tile| {
            let first_panel = tile.columns().start / LANES;
            let rows = rows.clone();
            self.isa.run(LinearTile { parts: &parts, x, rows, finish: Finish::Store, first_panel, y: tile });
        });
        Ok(out)
    }

    /// Borders of tasks: enough that threads end together, whole panels from each of `begins` on.
    fn cuts(&self, begins: &[usize]) -> Vec<usize> {
        let total = begins[begins.len() - 1];
        let step = match self.pool.threads() {
            1 => total.max(1),
            threads => total.div_ceil(threads * 4).next_multiple_of(LANES),
        };
        let inner = begins.windows(2).flat_map(|pair| (pair[0]..pair[1]).step_by(step));
        inner.chain([total]).collect()
    }
}
