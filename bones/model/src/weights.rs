//! How weights are stored: layout `panels-1`.
//!
//! A *panel* is [`PANEL`] consecutive rows of a matrix [rows, K]. K is cut into words of four bytes (one f32, two bf16,
//! four int8, or two halves of four int4); one word of each of a panel's rows lies side by side, so that one load brings
//! 64 bytes. Rows that the last panel lacks are zeros. With P panels:
//!
//! | stored | tensor | type and shape | value |
//! | --- | --- | --- | --- |
//! | f32 | `NAME` | F32 `[P, K, 16]` | |
//! | bf16 | `NAME` | BF16 `[P, ceil(K / 2), 16, 2]` | zero beyond K |
//! | int8 | `NAME.q` | U8 `[P, K / 4, 16, 4]` | scale · (byte − 128) |
//! | int4 | `NAME.q` | U8 `[P, K / 32, 4, 16, 4]` | scale · (q − 8), or scale · q + min |
//! | both | `NAME.scale`, `NAME.min` | F16 `[P, K / 32, 16]` | |
//!
//! Byte [p, b, j, lane, i] of int4 holds element 32 b + 4 j + i in its low nibble and 32 b + 16 + 4 j + i in its high
//! one. Vectors are F32 `[n]`. Which tensors a model has is left to [`crate::table`].

use std::ops::Range;

/// Rows of a matrix that lie side by side.
pub const PANEL: usize = 16;
/// Elements along K that share one scale.
pub const BLOCK: usize = 32;

/// Bytes of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Which image; those of adapters are counted after those of the model.
    pub region: usize,
    /// First byte within it, aligned to the element.
    pub start: usize,
    /// Number of bytes.
    pub len: usize,
}

/// How a matrix is stored. Spans cover the whole stored matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatrixData {
    /// 32-bit floats.
    F32(Span),
    /// bfloat16.
    Bf16(Span),
    /// w = scale · (byte − 128)
    Int8 {
        /// Bytes.
        q: Span,
        /// 16-bit floats, one a block.
        scale: Span,
    },
    /// w = scale · q + min, or scale · (q − 8) without a minimum
    Int4 {
        /// Two nibbles a byte.
        q: Span,
        /// 16-bit floats, one a block.
        scale: Span,
        /// 16-bit floats, one a block.
        min: Option<Span>,
    },
}

/// A part of a stored matrix [outputs, inputs]. Its rows begin on a [`PANEL`] and its columns on a [`BLOCK`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixSpec {
    /// Outputs of the stored matrix.
    pub stored_rows: usize,
    /// Inputs of the stored matrix.
    pub stored_cols: usize,
    /// Outputs of the part.
    pub rows: Range<usize>,
    /// Inputs of the part.
    pub cols: Range<usize>,
    /// Where and how.
    pub data: MatrixData,
}

/// A vector of 32-bit floats, or a part of one: a norm's weight or a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VectorSpec {
    /// Elements.
    pub len: usize,
    /// Where; exactly those elements.
    pub span: Span,
}

impl MatrixSpec {
    /// All of a stored matrix.
    pub fn whole(rows: usize, cols: usize, data: MatrixData) -> Self {
        Self { stored_rows: rows, stored_cols: cols, rows: 0..rows, cols: 0..cols, data }
    }

    /// The rows and columns of the stored matrix that one rank holds.
    #[must_use]
    pub fn part(&self, rows: Range<usize>, cols: Range<usize>) -> Self {
        assert!(rows.start % PANEL == 0 && cols.start % BLOCK == 0, "a part begins on a panel and on a block");
        assert!(rows.start < rows.end && rows.end <= self.stored_rows, "a part lies within its matrix");
        assert!(cols.start < cols.end && cols.end <= self.stored_cols, "a part lies within its matrix");
        Self { rows, cols, ..self.clone() }
    }
}

impl VectorSpec {
    /// The elements that one rank holds.
    #[must_use]
    pub fn part(&self, elements: Range<usize>) -> Self {
        assert!(elements.end <= self.len, "a part lies within its vector");
        let span = Span { start: self.span.start + elements.start * 4, len: elements.len() * 4, ..self.span };
        Self { len: elements.len(), span }
    }
}
