//! Weights as slices of the mapped images.

use crate::regions::Regions;
use std::sync::Arc;
use tie_bones_model::weights::{MatrixData, MatrixSpec, Span, VectorSpec};

/// A matrix in the images.
pub struct Matrix {
    spec: MatrixSpec,
    regions: Arc<Regions>,
}

/// A vector in the images.
pub struct Vector {
    spec: VectorSpec,
    regions: Arc<Regions>,
}

/// The numbers of a matrix, row-major.
#[derive(Clone, Copy, Debug)]
pub enum View<'a> {
    /// 32-bit floats.
    F32(&'a [f32]),
    /// Upper halves of 32-bit floats.
    Bf16(&'a [u16]),
    /// w = scale · q
    Int8 {
        /// One byte an element.
        q: &'a [i8],
        /// 16-bit floats, one for 32 elements.
        scale: &'a [u16],
    },
    /// w = scale · q + min, or scale · (q − 8)
    Int4 {
        /// 16 bytes for 32 elements.
        q: &'a [u8],
        /// 16-bit floats.
        scale: &'a [u16],
        /// 16-bit floats.
        min: Option<&'a [u16]>,
    },
}

impl Matrix {
    /// The spec must come from a weight table resolved over these regions: bounds and alignment were checked there.
    pub fn new(spec: MatrixSpec, regions: Arc<Regions>) -> Self {
        Self { spec, regions }
    }

    /// Outputs.
    pub fn rows(&self) -> usize {
        self.spec.rows
    }

    /// Inputs.
    pub fn cols(&self) -> usize {
        self.spec.cols
    }

    /// The numbers.
    pub fn view(&self) -> View<'_> {
        match self.spec.data {
            MatrixData::F32(span) => View::F32(self.cast(span)),
            MatrixData::Bf16(span) => View::Bf16(self.cast(span)),
            MatrixData::Int8 { q, scale } => View::Int8 { q: self.cast(q), scale: self.cast(scale) },
            MatrixData::Int4 { q, scale, min } => {
                View::Int4 { q: self.cast(q), scale: self.cast(scale), min: min.map(|span| self.cast(span)) }
            }
        }
    }

    fn cast<E: bytemuck::Pod>(&self, span: Span) -> &[E] {
        bytemuck::cast_slice(self.regions.bytes(span))
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
