//! Keys and values where the cache's layout says that they lie.

use super::{noise, rounded};
use crate::cache::{Counts, Layer, Pages, per_word};
use crate::simd::{LANES, Words};
use proptest::prelude::*;
use tie_bones_model::backend::{CacheShape, KvDtype};

pub const DTYPES: [KvDtype; 2] = [KvDtype::F32, KvDtype::Bf16];

/// Pages whose memory held something else before, NaN by NaN.
pub fn used_pages(shape: CacheShape) -> Pages {
    let mut pages = Pages::new(shape).unwrap();
    for block in 0..shape.block_count as u32 {
        pages.block_mut(block).fill(0xff);
    }
    pages
}

/// What a type keeps of a number.
pub fn kept(dtype: KvDtype, x: f32) -> f32 {
    match dtype {
        KvDtype::F32 => x,
        KvDtype::Bf16 => rounded(x),
    }
}

/// Element `part` of one lane's word.
fn element(dtype: KvDtype, words: &Words, lane: usize, part: usize) -> f32 {
    let word = u32::from_le_bytes(words[4 * lane..4 * lane + 4].try_into().unwrap());
    match dtype {
        KvDtype::F32 => f32::from_bits(word),
        KvDtype::Bf16 => f32::from_bits(word >> (16 * part) << 16),
    }
}

/// Key and value elements of one place, with those that only fill words and panels up.
fn key(cache: &Layer<'_>, dtype: KvDtype, block: u32, slot: usize, dim: usize) -> f32 {
    let per_word = per_word(dtype);
    element(dtype, &cache.keys(block, slot / LANES)[dim / per_word], slot % LANES, dim % per_word)
}

fn value(cache: &Layer<'_>, dtype: KvDtype, block: u32, slot: usize, dim: usize) -> f32 {
    let (per_word, counts) = (per_word(dtype), cache.counts);
    let word = dim / LANES * counts.slot_words + slot / per_word;
    element(dtype, &cache.values(block)[word], dim % LANES, slot % per_word)
}

/// Slots and dimensions with what fills up panels and words.
fn padded(counts: Counts, dtype: KvDtype) -> [usize; 4] {
    let per_word = per_word(dtype);
    [counts.slot_panels * LANES, counts.dim_words * per_word, counts.slot_words * per_word, counts.dim_panels * LANES]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn keys_and_values_lie_in_panels_and_the_first_slot_clears_what_was_there(
        head_dim in 1_usize..70, slots in prop_oneof![1_usize..40, Just(64)], filled in 1_usize..64,
    ) {
        let filled = filled.min(slots);
        for dtype in DTYPES {
            let shape =
                CacheShape { block_count: 3, block_size_tokens: slots, layer_count: 2, kv_heads: 2, head_dim, dtype };
            let mut pages = used_pages(shape);
            // The largest index.
            let block = 2;
            let before = [pages.block(0).to_vec(), pages.block(1).to_vec()];
            let (k, v) = (noise(1, filled * head_dim), noise(2, filled * head_dim));
            for (slot, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
                pages.put((1, 0), (block, slot), k, v);
            }
            let cache = pages.layer(1, 0);
            let [key_slots, key_dims, value_slots, value_dims] = padded(cache.counts, dtype);
            let want = |x: &[f32], slot: usize, dim: usize| {
                if slot < filled && dim < head_dim { kept(dtype, x[slot * head_dim + dim]) } else { 0.0 }
            };
            for (slot, dim) in (0..key_slots).flat_map(|slot| (0..key_dims).map(move |dim| (slot, dim))) {
                prop_assert_eq!(key(&cache, dtype, block, slot, dim), want(&k, slot, dim));
            }
            for (slot, dim) in (0..value_slots).flat_map(|slot| (0..value_dims).map(move |dim| (slot, dim))) {
                prop_assert_eq!(value(&cache, dtype, block, slot, dim), want(&v, slot, dim));
            }
            // Nothing else was touched: not the blocks before, not the other heads and layers.
            prop_assert!(before[0] == pages.block(0) && before[1] == pages.block(1));
            for other in [(0, 0), (0, 1), (1, 1)] {
                let cache = pages.layer(other.0, other.1);
                let words = (0..cache.counts.slot_panels).flat_map(|panel| cache.keys(block, panel));
                let others = cache.counts.dim_panels * cache.counts.slot_words;
                prop_assert!(words.chain(&cache.values(block)[..others]).flatten().all(|&byte| byte == 0xff));
            }
        }
    }

    #[test]
    fn a_block_is_all_there_is_to_a_token(head_dim in 1_usize..40, slots in 1_usize..20) {
        for dtype in DTYPES {
            let shape =
                CacheShape { block_count: 2, block_size_tokens: slots, layer_count: 1, kv_heads: 1, head_dim, dtype };
            let mut pages = Pages::new(shape).unwrap();
            let (k, v) = (noise(3, slots * head_dim), noise(4, slots * head_dim));
            for slot in 0..slots {
                let at = slot * head_dim..(slot + 1) * head_dim;
                pages.put((0, 0), (0, slot), &k[at.clone()], &v[at]);
            }
            let bytes = pages.block(0).to_vec();
            prop_assert_eq!(bytes.len(), pages.block_bytes());
            pages.block_mut(1).copy_from_slice(&bytes);
            let cache = pages.layer(0, 0);
            for (slot, dim) in (0..slots).flat_map(|slot| (0..head_dim).map(move |dim| (slot, dim))) {
                prop_assert_eq!(key(&cache, dtype, 1, slot, dim), kept(dtype, k[slot * head_dim + dim]));
                prop_assert_eq!(value(&cache, dtype, 1, slot, dim), kept(dtype, v[slot * head_dim + dim]));
            }
        }
    }
}

#[test]
fn a_cache_that_no_memory_can_hold_is_refused() {
    for (block_count, layer_count) in [(usize::MAX, 1), (1 << 40, 1 << 40), (1 << 60, 1)] {
        let dtype = KvDtype::F32;
        let shape = CacheShape { block_count, block_size_tokens: 16, layer_count, kv_heads: 2, head_dim: 64, dtype };
        assert!(Pages::new(shape).is_none());
    }
}

#[test]
#[should_panic(expected = "out of range")]
fn a_block_beyond_the_last_is_not_read() {
    let dtype = KvDtype::Bf16;
    let shape = CacheShape { block_count: 2, block_size_tokens: 4, layer_count: 1, kv_heads: 1, head_dim: 8, dtype };
    let pages = Pages::new(shape).unwrap();
    let _ = pages.layer(0, 0).keys(2, 0);
}
