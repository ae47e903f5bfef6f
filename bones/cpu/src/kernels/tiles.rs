//! The product of a panel of bfloat16 with a tile of activations on a matrix unit.
//!
//! Sums are rounded in the unit's own way: where it can do a matrix at all, it does every row. Bytes stay with the vector
//! unit: scales are applied every 32 elements, and to fetch whole numbers from tiles costs as much as to add them up.

use crate::kernels::product::Products;
use crate::lines::OnLine;
use crate::operand::{TILE, Tile};
use crate::simd::{Amx, CHAINS, LANES, Simd, Unit, Words};

/// A matrix unit at work, and what it leaves in memory.
pub struct OnUnit {
    unit: Unit,
    chains: OnLine<[[f32; LANES]; 2 * CHAINS * TILE]>,
}

impl OnUnit {
    /// Takes the unit.
    pub fn new(amx: Amx) -> Self {
        Self { unit: amx.unit(), chains: OnLine([[0.0; LANES]; 2 * CHAINS * TILE]) }
    }

    /// Multiplies a panel with a tile, or with two whole ones, whose words lie side by side.
    #[inline(always)]
    pub fn product<S: Simd>(&mut self, s: S, w: &[Words], x: &[Tile<'_>], out: [&mut Products; 2]) {
        let (height, chains) = (x[0].height, &mut self.chains.0);
        let unit = self.unit.of_rows(height);
        match x {
            [x, y] => unit.pairs([x.words, y.words], w, chains),
            _ => unit.pairs([x[0].words], w, chains),
        }
        for ((_, out), chains) in x.iter().zip(out).zip(chains.chunks_exact(CHAINS * height)) {
            for m in 0..height {
                s.store(s.add(s.load(&chains[m]), s.load(&chains[m + height])), &mut out[m]);
            }
        }
    }
}
