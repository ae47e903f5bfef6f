//! Weights as slices of the mapped images.

use crate::operand::Form;
use crate::regions::Regions;
use crate::simd::{LANES, Words};
use std::ops::Range;
use std::sync::Arc;
use tie_bones_model::weights::{BLOCK, MatrixData, MatrixSpec, PANEL, Span, VectorSpec};

/// A matrix, or a rank's part of one, in the images.
pub struct Matrix {
    spec: MatrixSpec,
    regions: Arc<Regions>,
}

/// A vector in the images.
pub struct Vector {
    spec: VectorSpec,
    regions: Arc<Regions>,
}

/// One kind of number of every panel of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct Panels<'a, E> {
    data: &'a [E],
    /// From one panel of the stored matrix to the next.
    stride: usize,
    /// The columns that are used, in units of E.
    first: usize,
    len: usize,
}

/// The numbers of a matrix, by panels.
#[derive(Clone, Copy, Debug)]
pub enum View<'a> {
    /// A word is a 32-bit float.
    F32(Panels<'a, Words>),
    /// A word is two bfloat16.
    Bf16(Panels<'a, Words>),
    /// w = scale · (q − 128); a word is four bytes.
    Int8 {
        /// Eight words a block.
        q: Panels<'a, Words>,
        /// 16-bit floats, one a block.
        scale: Panels<'a, [u16; LANES]>,
    },
    /// w = scale · q + min, or scale · (q − 8)
    Int4 {
        /// Four words a block.
        q: Panels<'a, Words>,
        /// 16-bit floats, one a block.
        scale: Panels<'a, [u16; LANES]>,
        /// 16-bit floats, one a block.
        min: Option<Panels<'a, [u16; LANES]>>,
    },
}

impl<'a, E> Panels<'a, E> {
    /// Panels of `stride` units, of each of which `used` are read; `first` of them are left out before.
    pub fn new(data: &'a [E], stride: usize, used: Range<usize>, first: usize) -> Self {
        Self { data: &data[first * stride..], stride, first: used.start, len: used.len() }
    }

    /// The units of one panel.
    #[inline(always)]
    #[allow(clippy::inline_always)]
    pub fn of(&self, panel: usize) -> &'a [E] {
        &self.data[panel * self.stride + self.first..][..self.len]
    }
}

impl Matrix {
    /// The spec must come from a weight table resolved over these regions: bounds and alignment were checked there.
    pub fn new(spec: MatrixSpec, regions: Arc<Regions>) -> Self {
        Self { spec, regions }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.spec.rows.len()
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.spec.cols.len()
    }

    /// How it wants what it is multiplied with.
    pub fn form(&self) -> Form {
        match self.spec.data {
            MatrixData::F32(_) => Form::F32,
            MatrixData::Bf16(_) => Form::Bf16,
            MatrixData::Int8 { .. } | MatrixData::Int4 { .. } => Form::Bytes,
        }
    }

    /// The numbers.
    pub fn view(&self) -> View<'_> {
        match &self.spec.data {
            MatrixData::F32(span) => View::F32(self.panels(*span, 1, 1)),
            MatrixData::Bf16(span) => View::Bf16(self.panels(*span, 2, 1)),
            MatrixData::Int8 { q, scale } => {
                View::Int8 { q: self.panels(*q, BLOCK, 8), scale: self.panels(*scale, BLOCK, 1) }
            }
            MatrixData::Int4 { q, scale, min } => View::Int4 {
                q: self.panels(*q, BLOCK, 4),
                scale: self.panels(*scale, BLOCK, 1),
                min: min.map(|span| self.panels(span, BLOCK, 1)),
            },
        }
    }

    /// Numbers of which `units` cover `group` columns.
    fn panels<E: bytemuck::Pod>(&self, span: Span, group: usize, units: usize) -> Panels<'_, E> {
        let spec = &self.spec;
        let data = bytemuck::cast_slice(self.regions.bytes(span));
        let at = |column: usize| column.div_ceil(group) * units;
        Panels::new(data, at(spec.stored_cols), at(spec.cols.start)..at(spec.cols.end), spec.rows.start / PANEL)
    }
}

impl Vector {
    /// As [`Matrix::new`].
    pub fn new(spec: VectorSpec, regions: Arc<Regions>) -> Self {
        Self { spec, regions }
    }

    /// The numbers.
    pub fn as_slice(&self) -> &[f32] {
        bytemuck::cast_slice(self.regions.bytes(self.spec.span))
    }
}
