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

#[cfg(test)]
mod tests {
    use super::*;

    /// Regions of one image: bytes that differ from one place to the next.
    fn image(len: usize) -> (Arc<Regions>, Vec<u8>) {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + i / 251) as u8).collect();
        let path = std::env::temp_dir().join(format!("bones-matrix-{}-{len}", std::process::id()));
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        (Arc::new(Regions::map(&[file]).unwrap()), bytes)
    }

    /// Rows 16 to 40 and columns 32 to 96 of a matrix of 40 by 160, or all of it.
    fn specs(data: MatrixData) -> [MatrixSpec; 2] {
        let whole = MatrixSpec::whole(40, 160, data);
        [whole.part(16..40, 32..96), whole]
    }

    fn span(start: usize, len: usize) -> Span {
        Span { region: 0, start, len }
    }

    /// The panels hold what the layout says: `units` of `size` bytes for each block of 32 columns.
    fn check<E: bytemuck::Pod>(panels: &Panels<'_, E>, spec: &MatrixSpec, bytes: &[u8], units: usize) {
        let (size, blocks) = (size_of::<E>(), 160 / BLOCK);
        for panel in 0..spec.rows.len().div_ceil(PANEL) {
            let first = ((spec.rows.start / PANEL + panel) * blocks + spec.cols.start / BLOCK) * units * size;
            let want = &bytes[first..first + spec.cols.len() / BLOCK * units * size];
            assert_eq!(bytemuck::cast_slice::<E, u8>(panels.of(panel)), want);
        }
    }

    #[test]
    fn parts_of_plain_matrices_are_found() {
        let (regions, bytes) = image(64 + 3 * 160 * 64);
        for (spec, whole) in specs(MatrixData::F32(span(64, 3 * 160 * 64))).into_iter().zip([false, true]) {
            let matrix = Matrix::new(spec.clone(), Arc::clone(&regions));
            assert_eq!((matrix.rows(), matrix.cols()), if whole { (40, 160) } else { (24, 64) });
            let View::F32(panels) = matrix.view() else { panic!("f32") };
            check(&panels, &spec, &bytes[64..], 32);
        }
        for spec in specs(MatrixData::Bf16(span(64, 3 * 80 * 64))) {
            let matrix = Matrix::new(spec.clone(), Arc::clone(&regions));
            let View::Bf16(panels) = matrix.view() else { panic!("bf16") };
            check(&panels, &spec, &bytes[64..], 16);
        }
    }

    #[test]
    fn parts_of_quantised_matrices_are_found_with_their_scales() {
        let (q, scale, min) = (span(2 * 15 * 32, 3 * 5 * 8 * 64), span(0, 15 * 32), span(15 * 32, 15 * 32));
        let (regions, bytes) = image(q.start + q.len);
        for spec in specs(MatrixData::Int8 { q, scale }) {
            let matrix = Matrix::new(spec.clone(), Arc::clone(&regions));
            let View::Int8 { q: words, scale } = matrix.view() else { panic!("int8") };
            check(&words, &spec, &bytes[q.start..], 8);
            check(&scale, &spec, &bytes, 1);
        }
        let half = Span { len: q.len / 2, ..q };
        for spec in specs(MatrixData::Int4 { q: half, scale, min: Some(min) }) {
            let matrix = Matrix::new(spec.clone(), Arc::clone(&regions));
            let View::Int4 { q: words, scale, min: Some(least) } = matrix.view() else { panic!("int4") };
            check(&words, &spec, &bytes[q.start..], 4);
            check(&scale, &spec, &bytes, 1);
            check(&least, &spec, &bytes[min.start..], 1);
        }
    }

    #[test]
    #[should_panic(expected = "out of range")]
    fn a_panel_beyond_the_last_is_not_read() {
        let (regions, _) = image(3 * 160 * 64);
        let matrix = Matrix::new(MatrixSpec::whole(40, 160, MatrixData::F32(span(0, 3 * 160 * 64))), regions);
        let View::F32(panels) = matrix.view() else { panic!("f32") };
        let _ = panels.of(3);
    }
}
