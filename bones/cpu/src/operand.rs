//! Activations in the forms that matrices read.
//!
//! Rows are taken in tiles of [`TILE`]; the last tile has the smallest height that holds the rest, missing rows being
//! zeros. Within a tile the words of its rows lie side by side, so that one walk along K reads all of them: form `F32`
//! has a word an element, `Bf16` a word for two, `Bytes` twelve words for a block of 32 elements (see [`BLOCK_WORDS`]).
//! A matrix unit wants some words of a row side by side: see [`run`].

use crate::lines::Lines;
use crate::simd::WHOLE;
use tie_bones_model::weights::BLOCK;

/// Rows multiplied together.
pub const TILE: usize = 8;
/// Words of a block of bytes: eight of quantised elements, the scale, scale · Σq, −8 · Σq and −128 · Σq.
pub const BLOCK_WORDS: usize = BLOCK / 4 + 4;
/// Place of the scale within a block.
pub const SCALE: usize = BLOCK / 4;
/// Place of scale · Σq.
pub const SUM: usize = SCALE + 1;
/// Place of −8 · Σq.
pub const MINUS_8: usize = SCALE + 2;
/// Place of −128 · Σq.
pub const MINUS_128: usize = SCALE + 3;

/// How a matrix wants what it is multiplied with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// 32-bit floats.
    F32,
    /// bfloat16.
    Bf16,
    /// Signed bytes with a scale for each block.
    Bytes,
}

/// Every form.
pub const FORMS: [Form; 3] = [Form::F32, Form::Bf16, Form::Bytes];

impl Form {
    /// Words that `cols` elements of a row take.
    pub fn words(self, cols: usize) -> usize {
        match self {
            Self::F32 => cols,
            Self::Bf16 => cols.div_ceil(2),
            Self::Bytes => cols / BLOCK * BLOCK_WORDS,
        }
    }
}

/// How many words of a row lie side by side in a tile, `[K words / run][height][run]`: more than one where a matrix unit
/// reads them, which is where rows have whole runs of bfloat16.
pub fn run(form: Form, cols: usize, matrix_unit: bool) -> usize {
    match form {
        Form::Bf16 if matrix_unit && cols % (2 * WHOLE) == 0 => WHOLE,
        _ => 1,
    }
}

/// Rows of activations in some of the forms.
pub struct Operand {
    rows: usize,
    cols: usize,
    data: [Lines<u32>; 3],
}

/// Some rows of one form: words `[K words][height]`, or as [`run`] says.
#[derive(Clone, Copy)]
pub struct Tile<'a> {
    /// Its rows among those of the operand; fewer than the height in the last tile.
    pub first: usize,
    /// Rows that are not padding.
    pub rows: usize,
    /// 1, 2, 4 or 8.
    pub height: usize,
    /// The words.
    pub words: &'a [u32],
}

/// Height of the tile that begins at a row.
pub fn height(rows: usize, first: usize) -> usize {
    (rows - first).min(TILE).next_power_of_two()
}

/// Rows with their padding.
fn padded(rows: usize) -> usize {
    match rows % TILE {
        0 => rows,
        rest => rows - rest + rest.next_power_of_two(),
    }
}

impl Operand {
    /// No rows.
    pub fn new() -> Option<Self> {
        Some(Self { rows: 0, cols: 0, data: [Lines::zeroed(0)?, Lines::zeroed(0)?, Lines::zeroed(0)?] })
    }

    /// Gives it room for rows in the forms that are wanted; the others become empty.
    pub fn reshape(&mut self, rows: usize, cols: usize, wanted: impl Fn(Form) -> bool) -> Option<()> {
        (self.rows, self.cols) = (rows, cols);
        for form in FORMS {
            let len = if wanted(form) { padded(rows).checked_mul(form.words(cols))? } else { 0 };
            self.data[form as usize].resize(len)?;
        }
        Some(())
    }

    /// Rows without padding.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// K.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The words of a form, tile after tile; empty where it was not asked for.
    pub fn words_mut(&mut self, form: Form) -> &mut [u32] {
        &mut self.data[form as usize]
    }

    /// The tile that begins at row `first`, a multiple of [`TILE`].
    pub fn tile(&self, form: Form, first: usize) -> Tile<'_> {
        let (words, height) = (form.words(self.cols), height(self.rows, first));
        let begin = first * words;
        let rows = (self.rows - first).min(TILE);
        Tile { first, rows, height, words: &self.data[form as usize][begin..begin + height * words] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_lie_one_behind_another_and_the_last_is_no_higher_than_needed() {
        let mut operand = Operand::new().unwrap();
        for (rows, heights) in
            [(1, vec![1]), (3, vec![4]), (8, vec![8]), (9, vec![8, 1]), (13, vec![8, 8]), (18, vec![8, 8, 2])]
        {
            operand.reshape(rows, 64, |form| form != Form::F32).unwrap();
            assert!(operand.words_mut(Form::F32).is_empty());
            for form in [Form::Bf16, Form::Bytes] {
                let tiles: Vec<_> = (0..rows).step_by(TILE).map(|first| operand.tile(form, first)).collect();
                assert_eq!(tiles.iter().map(|t| t.height).collect::<Vec<_>>(), heights);
                assert_eq!(tiles.iter().map(|t| t.rows).sum::<usize>(), rows);
                let words: usize = tiles.iter().map(|t| t.words.len()).sum();
                assert_eq!(words, operand.words_mut(form).len());
            }
        }
    }
}
