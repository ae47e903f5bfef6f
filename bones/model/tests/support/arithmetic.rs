//! What the naive backend computes, row by row, and how it reads packed matrices.

use tie_bones_model::description::Activation;
use tie_bones_model::rope::RopeTable;
use tie_bones_model::weights::{MatrixData, MatrixSpec, Span};

/// The numbers of a part of a stored matrix, row after row.
pub fn unpack(spec: &MatrixSpec, images: &[Vec<u8>]) -> Vec<f32> {
    let bytes = |span: Span| &images[span.region][span.start..span.start + span.len];
    let half = |span: Span, at: usize| f16(u16::from_le_bytes([bytes(span)[2 * at], bytes(span)[2 * at + 1]]));
    let (cols, blocks) = (spec.stored_cols, spec.stored_cols / 32);
    let element = |row: usize, col: usize| {
        let (panel, lane, block) = (row / 16, row % 16, col / 32);
        let scale_at = (panel * blocks + block) * 16 + lane;
        match spec.data {
            MatrixData::F32(span) => {
                let at = 4 * ((panel * cols + col) * 16 + lane);
                f32::from_le_bytes(bytes(span)[at..at + 4].try_into().unwrap())
            }
            MatrixData::Bf16(span) => {
                let at = 2 * (((panel * cols.div_ceil(2) + col / 2) * 16 + lane) * 2 + col % 2);
                f32::from_bits(u32::from(u16::from_le_bytes([bytes(span)[at], bytes(span)[at + 1]])) << 16)
            }
            MatrixData::Int8 { q, scale } => {
                let byte = bytes(q)[((panel * cols / 4 + col / 4) * 16 + lane) * 4 + col % 4];
                half(scale, scale_at) * (f32::from(byte) - 128.0)
            }
            MatrixData::Int4 { q, scale, min } => {
                let (place, is_high) = (col % 16, col % 32 >= 16);
                let byte = bytes(q)[(((panel * blocks + block) * 4 + place / 4) * 16 + lane) * 4 + place % 4];
                let code = f32::from(if is_high { byte >> 4 } else { byte & 15 });
                let scale = half(scale, scale_at);
                min.map_or(scale * (code - 8.0), |min| scale * code + half(min, scale_at))
            }
        }
    };
    spec.rows.clone().flat_map(|row| spec.cols.clone().map(move |col| element(row, col))).collect()
}

/// Normal numbers and zero.
fn f16(bits: u16) -> f32 {
    let (sign, exponent, fraction) = (bits >> 15, bits >> 10 & 31, bits & 0x3ff);
    if exponent == 0 {
        return 0.0;
    }
    f32::from_bits(u32::from(sign) << 31 | (u32::from(exponent) + 112) << 23 | u32::from(fraction) << 13)
}

pub fn dot(x: &[f32], y: &[f32]) -> f32 {
    x.iter().zip(y).fold(0.0, |sum, (x, y)| sum + x * y)
}

pub fn norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let root = (dot(x, x) / x.len() as f32 + eps).sqrt();
    x.iter().zip(weight).map(|(x, w)| x / root * w).collect()
}

pub fn act(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
    }
}

pub fn turn(head: &mut [f32], table: &RopeTable, position: u32) {
    let pairs = table.frequencies.len();
    for (j, frequency) in table.frequencies.iter().enumerate() {
        let (sin, cos) = (position as f32 * frequency).sin_cos();
        let (sin, cos) = (sin * table.attention_factor, cos * table.attention_factor);
        let (a, b) = (head[j], head[j + pairs]);
        (head[j], head[j + pairs]) = (a * cos - b * sin, b * cos + a * sin);
    }
}

pub fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    for score in scores.iter_mut() {
        *score = (*score - max).exp();
    }
    let sum: f32 = scores.iter().sum();
    for score in scores {
        *score /= sum;
    }
}
