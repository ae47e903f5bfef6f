//! Matrices as they are stored, written from the description of the layout, with their weights in 64 bits.

use super::noise;
use crate::matrix::{Panels, View};
use crate::operand::Form;
use crate::simd::{LANES, Words, f16_to_f32, to_bf16};
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    F32,
    Bf16,
    Int8,
    Int4,
    Int4Min,
}

pub const KINDS: [Kind; 5] = [Kind::F32, Kind::Bf16, Kind::Int8, Kind::Int4, Kind::Int4Min];

impl Kind {
    pub fn form(self) -> Form {
        match self {
            Self::F32 => Form::F32,
            Self::Bf16 => Form::Bf16,
            _ => Form::Bytes,
        }
    }

    /// Columns that `words` words cover.
    fn group(self) -> (usize, usize) {
        match self {
            Self::F32 => (1, 1),
            Self::Bf16 => (2, 1),
            Self::Int8 => (32, 8),
            Self::Int4 | Self::Int4Min => (32, 4),
        }
    }
}

pub struct Packed {
    pub kind: Kind,
    pub rows: usize,
    pub cols: usize,
    weights: Vec<f64>,
    words: Vec<Words>,
    scale: Vec<[u16; LANES]>,
    min: Vec<[u16; LANES]>,
}

impl Packed {
    /// A random matrix; columns of quantised kinds are whole blocks.
    pub fn new(kind: Kind, rows: usize, cols: usize, seed: u32) -> Self {
        let (panels, (group, units)) = (rows.div_ceil(LANES), kind.group());
        let blocks = panels * cols.div_ceil(32);
        let mut new = Self {
            kind,
            rows,
            cols,
            weights: vec![0.0; rows * cols],
            words: vec![[0; 4 * LANES]; panels * cols.div_ceil(group) * units],
            scale: vec![[0; LANES]; blocks],
            min: vec![[0; LANES]; blocks],
        };
        for (at, x) in noise(seed, rows * cols).into_iter().enumerate() {
            new.weights[at] = new.put(at / cols, at % cols, x);
        }
        new
    }

    /// Writes a number as nearly as the kind can and gives what it has become.
    fn put(&mut self, row: usize, col: usize, x: f32) -> f64 {
        let (panel, lane, cols) = (row / LANES, row % LANES, self.cols);
        let block = panel * (cols / 32) + col / 32;
        // Scales between 2⁻⁶ and 2⁻⁵, of every fraction.
        let scale = 0x2400 | ((row * 7 + col / 32 * 131 + 5) % 1024) as u16;
        match self.kind {
            Kind::F32 => {
                self.words[panel * cols + col][4 * lane..][..4].copy_from_slice(&x.to_le_bytes());
                x.into()
            }
            Kind::Bf16 => {
                let half = to_bf16(x);
                let word = &mut self.words[panel * cols.div_ceil(2) + col / 2];
                word[4 * lane + 2 * (col % 2)..][..2].copy_from_slice(&half.to_le_bytes());
                f32::from_bits(u32::from(half) << 16).into()
            }
            Kind::Int8 => {
                let byte = (x * 127.9 + 128.0) as u8;
                self.words[panel * (cols / 4) + col / 4][4 * lane + col % 4] = byte;
                self.scale[block][lane] = scale;
                f64::from(f16_to_f32(scale)) * (f64::from(byte) - 128.0)
            }
            Kind::Int4 | Kind::Int4Min => {
                let (nibble, half, place) = (((x + 1.0) * 8.0) as u8, col % 32 / 16, col % 16);
                self.words[block * 4 + place / 4][4 * lane + place % 4] |= nibble << (4 * half);
                (self.scale[block][lane], self.min[block][lane]) = (scale, 0xaf00 | scale & 0xff);
                let min = match self.kind {
                    Kind::Int4 => -8.0 * f64::from(f16_to_f32(scale)),
                    _ => f64::from(f16_to_f32(self.min[block][lane])),
                };
                f64::from(f16_to_f32(scale)) * f64::from(nibble) + min
            }
        }
    }

    pub fn weight(&self, row: usize, col: usize) -> f64 {
        self.weights[row * self.cols + col]
    }

    /// All of it.
    pub fn whole(&self) -> View<'_> {
        self.view(0, 0..self.cols)
    }

    /// A rank's part of it.
    pub fn view(&self, first_row: usize, cols: Range<usize>) -> View<'_> {
        let (group, units) = self.kind.group();
        let at = |col: usize, (group, units): (usize, usize)| col.div_ceil(group) * units;
        let used = |kind| at(cols.start, kind)..at(cols.end, kind);
        let panel = first_row / LANES;
        let q = Panels::new(&self.words, at(self.cols, (group, units)), used((group, units)), panel);
        if self.kind.form() != Form::Bytes {
            return if self.kind == Kind::F32 { View::F32(q) } else { View::Bf16(q) };
        }
        let halves = |data| Panels::new(data, self.cols / 32, used((32, 1)), panel);
        let scale = halves(&self.scale);
        match self.kind {
            Kind::Int8 => View::Int8 { q, scale },
            _ => View::Int4 { q, scale, min: (self.kind == Kind::Int4Min).then(|| halves(&self.min)) },
        }
    }
}
