//! Activations on a CPU, and work that is split by their rows.

use crate::backend::CpuError;
use crate::grid::{every, grid};
use crate::lines::Lines;
use crate::pool::Pool;

/// Activations, row after row.
pub struct Tensor {
    width: usize,
    rows: usize,
    data: Lines<f32>,
}

impl Tensor {
    /// No rows.
    pub fn new(width: usize) -> Result<Self, CpuError> {
        Ok(Self { width, rows: 0, data: Lines::zeroed(0).ok_or(CpuError::Memory("activations"))? })
    }

    /// Gives it rows of unspecified content.
    pub fn resize(&mut self, rows: usize) -> Result<(), CpuError> {
        let len = rows.checked_mul(self.width).ok_or(CpuError::Memory("activations"))?;
        self.data.resize(len).ok_or(CpuError::Memory("activations"))?;
        self.rows = rows;
        Ok(())
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..(row + 1) * self.width]
    }

    /// All rows.
    pub fn data(&self) -> &[f32] {
        &self.data
    }

    /// All rows, to write.
    pub fn data_mut(&mut self) -> &mut [f32] {
        &mut self.data
    }

    /// Runs `task` for each row, the cheap ones in heaps.
    pub fn each_row(&mut self, pool: &Pool, task: &(dyn Fn(usize, &mut [f32]) + Sync)) {
        let width = self.width;
        let cuts = every(self.rows, (16_384 / width.max(1)).clamp(1, self.rows.max(1)));
        grid(pool, &mut self.data, width, [&cuts, &[0, width]], &|tile| {
            for row in tile.rows() {
                task(row, tile.row(row));
            }
        });
    }
}
