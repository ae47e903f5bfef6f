//! The paged cache of keys and values.
//!
//! A block is contiguous: for each layer, for each head, keys `[dimension][slot]` and then values `[slot][dimension]`,
//! where a slot is a token's place in its block. Keys lie dimension by dimension so that sixteen of them are scored
//! at once. Slots (of keys) and dimensions (of values) are padded to whole vectors, the padding staying zero.

use crate::lines::Lines;
use crate::simd::{Element, LANES};
use bytemuck::{cast_slice, cast_slice_mut};
use tie_bones_model::backend::CacheShape;

/// Keys and values of one element type.
pub struct Pages<E> {
    shape: CacheShape,
    data: Lines<E>,
}

/// One head of one layer, in units of sixteen elements.
#[derive(Clone, Copy)]
pub struct Layer<'a, E> {
    data: &'a [[E; LANES]],
    block_stride: usize,
    start: usize,
    /// Vectors of keys for one dimension.
    pub slot_lanes: usize,
    /// Vectors of one value.
    pub dim_lanes: usize,
    /// Tokens of a block.
    pub block_size: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
}

fn slot_lanes(shape: &CacheShape) -> usize {
    shape.block_size_tokens.div_ceil(LANES)
}

fn dim_lanes(shape: &CacheShape) -> usize {
    shape.head_dim.div_ceil(LANES)
}

/// Vectors of one head of one layer of one block.
fn head_lanes(shape: &CacheShape) -> usize {
    shape.head_dim * slot_lanes(shape) + shape.block_size_tokens * dim_lanes(shape)
}

/// Elements of one block.
fn block_len(shape: &CacheShape) -> Option<usize> {
    shape.layer_count.checked_mul(shape.kv_heads)?.checked_mul(head_lanes(shape))?.checked_mul(LANES)
}

impl<'a, E: Element> Layer<'a, E> {
    fn head(&self, block: u32) -> &'a [[E; LANES]] {
        let start = block as usize * self.block_stride + self.start;
        &self.data[start..start + self.head_dim * self.slot_lanes + self.block_size * self.dim_lanes]
    }

    /// Keys of a block, `[dimension][vector of slots]`.
    pub fn keys(&self, block: u32) -> &'a [[E; LANES]] {
        &self.head(block)[..self.head_dim * self.slot_lanes]
    }

    /// Values of a block, `[slot][vector of dimensions]`.
    pub fn values(&self, block: u32) -> &'a [[E; LANES]] {
        &self.head(block)[self.head_dim * self.slot_lanes..]
    }
}

impl<E: Element> Pages<E> {
    /// All zeros; `None` when memory is short.
    pub fn new(shape: CacheShape) -> Option<Self> {
        let len = block_len(&shape)?.checked_mul(shape.block_count)?;
        Some(Self { data: Lines::zeroed(len)?, shape })
    }

    /// Its shape.
    pub fn shape(&self) -> CacheShape {
        self.shape
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.data.len() / self.shape.block_count * size_of::<E>()
    }

    /// One head of one layer.
    pub fn layer(&self, layer: usize, head: usize) -> Layer<'_, E> {
        let shape = &self.shape;
        Layer {
            data: cast_slice(&self.data),
            block_stride: self.data.len() / shape.block_count / LANES,
            start: (layer * shape.kv_heads + head) * head_lanes(shape),
            slot_lanes: slot_lanes(shape),
            dim_lanes: dim_lanes(shape),
            block_size: shape.block_size_tokens,
            head_dim: shape.head_dim,
        }
    }

    /// Stores the key and value of one token and head.
    pub fn put(&mut self, (layer, head): (usize, usize), (block, slot): (u32, usize), k: &[E], v: &[E]) {
        let shape = self.shape;
        let block_len = self.data.len() / shape.block_count;
        let head_len = head_lanes(&shape) * LANES;
        let start = block as usize * block_len + (layer * shape.kv_heads + head) * head_len;
        let (keys, values) =
            self.data[start..start + head_len].split_at_mut(shape.head_dim * slot_lanes(&shape) * LANES);
        for (row, k) in keys.chunks_exact_mut(slot_lanes(&shape) * LANES).zip(k) {
            row[slot] = *k;
        }
        values[slot * dim_lanes(&shape) * LANES..][..v.len()].copy_from_slice(v);
    }

    /// A block as bytes.
    pub fn block(&self, id: u32) -> &[u8] {
        let len = self.block_bytes();
        &cast_slice(&self.data)[id as usize * len..(id as usize + 1) * len]
    }

    /// A block as bytes, to write.
    pub fn block_mut(&mut self, id: u32) -> &mut [u8] {
        let len = self.block_bytes();
        &mut cast_slice_mut(&mut self.data)[id as usize * len..(id as usize + 1) * len]
    }
}
