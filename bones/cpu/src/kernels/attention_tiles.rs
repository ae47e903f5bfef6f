//! Scores and sums of values on a matrix unit, in place of those of `attention`.

use crate::kernels::attention::{ROWS, STEP, SeeChunk, UNIT_ROWS};
use crate::operand::{Form, run};
use crate::simd::{Isa, LANES, Shaped, Simd, WHOLE, Words};
use std::ops::Range;
use tie_bones_model::backend::KvDtype;

/// Most rows that are worth a tile.
pub fn most_rows(isa: Isa, dtype: KvDtype, head_dim: usize) -> usize {
    let on_unit = dtype == KvDtype::Bf16 && run(Form::Bf16, head_dim, isa.has_matrix_unit()) > 1;
    if on_unit { UNIT_ROWS } else { ROWS }
}

/// Rows of the tile for some rows, padding included.
pub fn tile_height(rows: usize) -> usize {
    match rows {
        0..=4 => rows,
        5..=ROWS => ROWS,
        _ => UNIT_ROWS,
    }
}

impl SeeChunk<'_> {
    /// Scores of all panels of a step.
    #[inline(always)]
    pub(super) fn score_in_tiles<const R: usize>(
        &self,
        unit: &mut Shaped,
        panels: Range<usize>,
        scores: &mut [[[f32; LANES]; STEP]; R],
    ) {
        let (count, mut keys): (usize, [&[Words]; STEP]) = (panels.len(), [&[]; STEP]);
        for (panel, keys) in panels.zip(&mut keys) {
            let (block, part) = self.place_of(panel);
            *keys = self.cache.keys(self.blocks[block], part);
        }
        unit.scores(self.q, &keys[..count], scores.as_flattened_mut(), STEP);
    }

    /// As `weigh`, for blocks of whole panels.
    #[inline(always)]
    pub(super) fn weigh_in_tiles<S: Simd, const R: usize>(
        &mut self,
        s: S,
        unit: &mut Shaped,
        panels: Range<usize>,
        shares: &[[[u32; LANES]; R]; STEP],
        kept: &[f32; LANES],
    ) {
        let counts = self.cache.counts;
        let (count, mut values): (usize, [&[Words]; STEP]) = (panels.len(), [&[]; STEP]);
        for (panel, values) in panels.zip(&mut values) {
            let (block, part) = self.place_of(panel);
            *values = &self.cache.values(self.blocks[block])[part * (WHOLE / 2)..];
        }
        for row in 0..R {
            for sums in &mut self.state.values[row * counts.dim_panels..(row + 1) * counts.dim_panels] {
                s.store(s.mul(s.load(sums), s.splat(kept[row])), sums);
            }
        }
        let shares = shares[..count].as_flattened().as_flattened();
        unit.weigh(shares, &values[..count], counts.slot_words, self.state.values, counts.dim_panels);
    }
}
