//! What lies on the naive device.

use super::arithmetic::dot;
use super::naive::Naive;
use std::ops::Range;
use tie_bones_model::backend::{CacheShape, Linear};
use tie_bones_model::batch::StepPlan;

pub struct Matrix {
    pub id: usize,
    pub rows: usize,
    pub cols: usize,
    pub values: Vec<f32>,
}

#[derive(Default)]
pub struct Tensor {
    pub width: usize,
    pub data: Vec<f32>,
}

#[derive(Default)]
pub struct Operand {
    pub x: Tensor,
    pub readers: Vec<usize>,
}

pub struct Cache {
    pub shape: CacheShape,
    /// `[block, layer, head, slot, k and v, dim]`
    pub data: Vec<f32>,
}

impl Tensor {
    pub fn rows(&self) -> std::slice::ChunksExact<'_, f32> {
        self.data.chunks_exact(self.width)
    }

    pub fn set(&mut self, rows: impl Iterator<Item = Vec<f32>>) {
        let len = self.data.len();
        self.data = rows.flatten().collect();
        assert_eq!(self.data.len(), len, "out has the rows of the operation");
    }
}

impl Operand {
    pub fn fill(&mut self, width: usize, data: Vec<f32>, readers: &[&Matrix]) {
        assert!(readers.iter().all(|reader| reader.cols == width), "readers read rows of this width");
        *self = Self { x: Tensor { width, data }, readers: readers.iter().map(|reader| reader.id).collect() };
    }

    pub fn product(&self, row: &[f32], part: &Linear<Naive>) -> Vec<f32> {
        assert!(self.readers.contains(&part.weight.id), "the operand was prepared for this matrix");
        let bias = part.bias.clone().unwrap_or_else(|| vec![0.0; part.weight.rows]);
        let rows = part.weight.values.chunks_exact(part.weight.cols);
        rows.zip(bias).map(|(w, bias)| dot(row, w) + bias).collect()
    }
}

impl Cache {
    pub fn place(&self, plan: &StepPlan, row: usize, position: usize, (layer, head): (usize, usize)) -> usize {
        let CacheShape { block_size_tokens: size, layer_count, kv_heads, head_dim, .. } = self.shape;
        let block = plan.tables[plan.rows[row].first_block + position / size] as usize;
        (((block * layer_count + layer) * kv_heads + head) * size + position % size) * 2 * head_dim
    }

    pub fn block(&self, id: u32) -> Range<usize> {
        let len = self.data.len() / self.shape.block_count;
        id as usize * len..(id as usize + 1) * len
    }
}
