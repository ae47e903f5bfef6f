//! The paged cache of keys and values.
//!
//! A block is contiguous: for each layer, for each head, keys and then values, both as panels of words like packed
//! weights. Keys are a matrix of slots (a slot is a token's place in its block) by dimensions, values one of dimensions
//! by slots: scores and sums of values are products of a panel with a tile. What fills a last panel or word stays zero.

use crate::lines::Lines;
use crate::simd::{LANES, Words, to_bf16};
use bytemuck::{cast_slice, cast_slice_mut};
use tie_bones_model::backend::{CacheShape, KvDtype};

/// Keys and values of all layers.
pub struct Pages {
    shape: CacheShape,
    data: Lines<u32>,
}

/// One head of one layer.
#[derive(Clone, Copy)]
pub struct Layer<'a> {
    data: &'a [Words],
    block_stride: usize,
    start: usize,
    /// How many there are of what.
    pub counts: Counts,
}

/// Sizes of one head of one block.
#[derive(Clone, Copy)]
pub struct Counts {
    /// Tokens of a block.
    pub slots: usize,
    /// Panels of keys.
    pub slot_panels: usize,
    /// Words of one value dimension.
    pub slot_words: usize,
    /// Panels of values.
    pub dim_panels: usize,
    /// Words of one key.
    pub dim_words: usize,
}

impl Counts {
    fn of(shape: &CacheShape) -> Self {
        let per_word = per_word(shape.dtype);
        Self {
            slots: shape.block_size_tokens,
            slot_panels: shape.block_size_tokens.div_ceil(LANES),
            slot_words: shape.block_size_tokens.div_ceil(per_word),
            dim_panels: shape.head_dim.div_ceil(LANES),
            dim_words: shape.head_dim.div_ceil(per_word),
        }
    }

    /// Panel rows of the keys; those of the values follow.
    fn keys(&self) -> usize {
        self.slot_panels * self.dim_words
    }

    fn all(&self) -> usize {
        self.keys() + self.dim_panels * self.slot_words
    }
}

/// Elements of a word.
pub fn per_word(dtype: KvDtype) -> usize {
    match dtype {
        KvDtype::F32 => 1,
        KvDtype::Bf16 => 2,
    }
}

impl<'a> Layer<'a> {
    fn head(&self, block: u32) -> &'a [Words] {
        let start = block as usize * self.block_stride + self.start;
        &self.data[start..start + self.counts.all()]
    }

    /// A panel of keys: its words by dimension.
    pub fn keys(&self, block: u32, panel: usize) -> &'a [Words] {
        &self.head(block)[panel * self.counts.dim_words..][..self.counts.dim_words]
    }

    /// Panels of values by dimension, each with its words by slot.
    pub fn values(&self, block: u32) -> &'a [Words] {
        &self.head(block)[self.counts.keys()..]
    }
}

impl Pages {
    /// All zeros; `None` when memory is short.
    pub fn new(shape: CacheShape) -> Option<Self> {
        let heads = shape.layer_count.checked_mul(shape.kv_heads)?.checked_mul(shape.block_count)?;
        let len = heads.checked_mul(Counts::of(&shape).all())?.checked_mul(LANES)?;
        Some(Self { data: Lines::zeroed(len)?, shape })
    }

    /// Its shape.
    pub fn shape(&self) -> &CacheShape {
        &self.shape
    }

    /// Words of a block.
    fn block_len(&self) -> usize {
        self.shape.layer_count * self.shape.kv_heads * Counts::of(&self.shape).all() * LANES
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> usize {
        self.block_len() * size_of::<u32>()
    }

    /// One head of one layer.
    pub fn layer(&self, layer: usize, head: usize) -> Layer<'_> {
        let counts = Counts::of(&self.shape);
        Layer {
            data: cast_slice(&self.data),
            block_stride: self.block_len() / LANES,
            start: (layer * self.shape.kv_heads + head) * counts.all(),
            counts,
        }
    }

    /// Stores the key and value of one token and head. The first slot clears the others: what a block held before is
    /// never seen, not even as a NaN times nothing.
    pub fn put(&mut self, (layer, head): (usize, usize), (block, slot): (u32, usize), k: &[f32], v: &[f32]) {
        let counts = Counts::of(&self.shape);
        let start = block as usize * self.block_len() + (layer * self.shape.kv_heads + head) * counts.all() * LANES;
        let words = &mut self.data[start..start + counts.all() * LANES];
        if slot == 0 {
            words.fill(0);
        }
        let (keys, values) = words.split_at_mut(counts.keys() * LANES);
        let keys = &mut keys[slot / LANES * counts.dim_words * LANES..][..counts.dim_words * LANES];
        let panels = values.chunks_exact_mut(counts.slot_words * LANES).zip(v.chunks(LANES));
        match self.shape.dtype {
            KvDtype::F32 => {
                let words = keys.iter_mut().skip(slot % LANES).step_by(LANES);
                words.zip(k).for_each(|(word, k)| *word = k.to_bits());
                for (panel, v) in panels {
                    let lanes = &mut panel[slot * LANES..][..v.len()];
                    lanes.iter_mut().zip(v).for_each(|(word, v)| *word = v.to_bits());
                }
            }
            KvDtype::Bf16 => {
                let words = keys.iter_mut().skip(slot % LANES).step_by(LANES);
                let pairs = k.chunks(2).map(|k| k.iter().rev().fold(0, |word, &k| word << 16 | u32::from(to_bf16(k))));
                words.zip(pairs).for_each(|(word, pair)| *word = pair);
                for (panel, v) in panels {
                    let lanes: &mut [[u16; 2]] = cast_slice_mut(&mut panel[slot / 2 * LANES..][..v.len()]);
                    lanes.iter_mut().zip(v).for_each(|(pair, &v)| pair[slot % 2] = to_bf16(v));
                }
            }
        }
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
