//! Tiles of activations by panels of weights.

use super::{AHEAD, ROW_BYTES, Shaped};
use crate::simd::{CHAINS, LANES, WHOLE, Words};
use std::arch::asm;

// SAFETY of the assembly below: a `Shaped` is lent by this thread's only `Unit`, so the instructions exist and registers
// have the shapes that it names. Lengths are checked before, so that every row lies within its slice.
impl Shaped {
    /// Multiplies tiles that stay in their registers, four products a round: for measuring what the unit can do.
    pub fn spin(&mut self, rounds: usize) {
        // SAFETY: see above; no memory is touched.
        unsafe {
            asm!(
                "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3", "tilezero tmm4", "tilezero tmm6",
                "2:",
                "tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm4, tmm6", "tdpbf16ps tmm3, tmm4, tmm6",
                "dec {n}", "jnz 2b",
                n = inout(reg) rounds.max(1) => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm6") _,
                options(nomem, nostack)
            );
        }
    }

    /// Products of bfloat16 pairs, of even and odd groups apart: `out[c][m][n] = Σ x[g][m] · w[g][n]` over the groups g with
    /// g mod 2 = c, in order. One tile, weights being fetched from memory ahead, or two that share the reading of weights.
    ///
    /// `x`: tiles of as many groups of `rows` rows of sixteen words; `w`: sixteen words a group; `out`: `2 · rows` rows for
    /// each tile.
    #[inline(always)]
    pub fn pairs<const TILES: usize>(&mut self, x: [&[u32]; TILES], w: &[Words], out: &mut [[f32; LANES]]) {
        let groups = w.len() / WHOLE;
        assert!(x.iter().all(|x| x.len() >= groups * self.rows * WHOLE));
        assert!(matches!(TILES, 1 | 2) && out.len() >= TILES * CHAINS * self.rows);
        macro_rules! tile {
            ($x:literal, $c:literal) => {
                concat!(
                    "tileloadd tmm4, [{",
                    $x,
                    "} + {row}]\n",
                    "tdpbf16ps tmm",
                    $c,
                    ", tmm4, tmm6\n",
                    "add {",
                    $x,
                    "}, {step}\n",
                )
            };
        }
        macro_rules! fetch {
            ($($line:literal)*) => { concat!($("prefetcht0 [{w} + {ahead} + 64 * ", $line, "]\n"),*) };
        }
        let (n, rest, step) = (groups / CHAINS, groups % CHAINS, self.rows * ROW_BYTES);
        if let [x] = x[..] {
            // SAFETY: see above; what is fetched ahead may be anything.
            unsafe {
                asm!(
                    "tilezero tmm0", "tilezero tmm1",
                    "test {n}, {n}", "jz 3f",
                    "2:",
                    fetch!("0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15"),
                    "tileloadd tmm6, [{w} + {row}]", "add {w}, 1024", tile!("x", "0"),
                    fetch!("0" "1" "2" "3" "4" "5" "6" "7" "8" "9" "10" "11" "12" "13" "14" "15"),
                    "tileloadd tmm6, [{w} + {row}]", "add {w}, 1024", tile!("x", "1"),
                    "dec {n}", "jnz 2b",
                    "3:",
                    "test {rest}, {rest}", "jz 4f",
                    "tileloadd tmm6, [{w} + {row}]", tile!("x", "0"),
                    "4:",
                    "tilestored [{out} + {row}], tmm0", "add {out}, {step}", "tilestored [{out} + {row}], tmm1",
                    x = inout(reg) x.as_ptr() => _, w = inout(reg) w.as_ptr() => _, n = inout(reg) n => _,
                    rest = in(reg) rest, out = inout(reg) out.as_mut_ptr() => _, step = in(reg) step,
                    row = in(reg) ROW_BYTES, ahead = const AHEAD,
                    out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, options(nostack)
                );
            }
        }
        if let [x, y] = x[..] {
            // SAFETY: see above.
            unsafe {
                asm!(
                    "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                    "test {n}, {n}", "jz 3f",
                    "2:",
                    "tileloadd tmm6, [{w} + {row}]", "add {w}, 1024", tile!("x", "0"), tile!("y", "2"),
                    "tileloadd tmm6, [{w} + {row}]", "add {w}, 1024", tile!("x", "1"), tile!("y", "3"),
                    "dec {n}", "jnz 2b",
                    "3:",
                    "test {rest}, {rest}", "jz 4f",
                    "tileloadd tmm6, [{w} + {row}]", tile!("x", "0"), tile!("y", "2"),
                    "4:",
                    "tilestored [{out} + {row}], tmm0", "add {out}, {step}",
                    "tilestored [{out} + {row}], tmm1", "add {out}, {step}",
                    "tilestored [{out} + {row}], tmm2", "add {out}, {step}",
                    "tilestored [{out} + {row}], tmm3",
                    x = inout(reg) x.as_ptr() => _, y = inout(reg) y.as_ptr() => _,
                    w = inout(reg) w.as_ptr() => _, n = inout(reg) n => _, rest = in(reg) rest,
                    out = inout(reg) out.as_mut_ptr() => _, step = in(reg) step, row = in(reg) ROW_BYTES,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm6") _,
                    options(nostack)
                );
            }
        }
    }
}
