//! Looks a row up in a matrix of panels.

use crate::matrix::View;
use crate::simd::{LANES, f16_to_f32};
use tie_bones_model::weights::BLOCK;

/// `out = row · scale`
pub fn embed(view: &View<'_>, row: usize, scale: f32, out: &mut [f32]) {
    let (panel, lane) = (row / LANES, row % LANES);
    match view {
        View::F32(w) => {
            for (out, words) in out.iter_mut().zip(w.of(panel)) {
                *out = f32::from_bits(word(words, lane)) * scale;
            }
        }
        View::Bf16(w) => {
            for (out, words) in out.chunks_mut(2).zip(w.of(panel)) {
                let word = word(words, lane);
                let pair = [f32::from_bits(word << 16), f32::from_bits(word & 0xffff_0000)];
                out.iter_mut().zip(pair).for_each(|(out, value)| *out = value * scale);
            }
        }
        View::Int8 { q, scale: scales } => {
            let blocks = out.chunks_mut(BLOCK).zip(q.of(panel).chunks_exact(8)).zip(scales.of(panel));
            for ((out, q), block_scale) in blocks {
                let block_scale = f16_to_f32(block_scale[lane]);
                let bytes = q.iter().flat_map(|words| word(words, lane).to_le_bytes());
                for (out, byte) in out.iter_mut().zip(bytes) {
                    *out = block_scale * (f32::from(byte) - 128.0) * scale;
                }
            }
        }
        View::Int4 { q, scale: scales, min } => {
            let blocks = out.chunks_mut(BLOCK).zip(q.of(panel).chunks_exact(4)).zip(scales.of(panel));
            for (block, ((out, q), block_scale)) in blocks.enumerate() {
                let block_scale = f16_to_f32(block_scale[lane]);
                let least = min.map_or(-8.0 * block_scale, |min| f16_to_f32(min.of(panel)[block][lane]));
                let (low, high) = out.split_at_mut(BLOCK / 2);
                let bytes = q.iter().flat_map(|words| word(words, lane).to_le_bytes());
                for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
                    *low = (block_scale * f32::from(byte & 15) + least) * scale;
                    *high = (block_scale * f32::from(byte >> 4) + least) * scale;
                }
            }
        }
    }
}

fn word(words: &[u8; 4 * LANES], lane: usize) -> u32 {
    let word = &words[4 * lane..4 * lane + 4];
    u32::from_le_bytes([word[0], word[1], word[2], word[3]])
}
