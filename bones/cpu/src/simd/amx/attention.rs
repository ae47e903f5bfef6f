//! Tiles of queries by cached keys, and of shares by cached values.

use super::{MOST, ROW_BYTES, Shaped};
use crate::simd::{LANES, WHOLE, Words};
use std::arch::asm;

/// Panels and dimensions that are multiplied together.
const TOGETHER: usize = 4;

// SAFETY of the assembly below: a `Shaped` is lent by this thread's only `Unit`, so the instructions exist and registers
// have the shapes that it names. Lengths are checked before, so that every row lies within its slice.
impl Shaped {
    /// Products of one tile with several panels, `out[m · stride + p] = Σ x[g][m] · w[p][g]` over the groups g in order.
    ///
    /// `x` as for `pairs`; `w`: panels of equally many groups.
    #[inline(always)]
    pub fn scores(&mut self, x: &[u32], w: &[&[Words]], out: &mut [[f32; LANES]], stride: usize) {
        let words = w.first().map_or(0, |w| w.len());
        let groups = words / WHOLE;
        assert!(groups > 0 && w.iter().all(|w| w.len() == words) && x.len() >= groups * self.rows * WHOLE);
        assert!(out.len() >= stride * (self.rows - 1) + w.len());
        macro_rules! panel {
            ($c:literal) => {
                concat!(
                    "tileloadd tmm6, [{w",
                    $c,
                    "} + {row}]\n",
                    "tdpbf16ps tmm",
                    $c,
                    ", tmm4, tmm6\n",
                    "add {w",
                    $c,
                    "}, 1024\n",
                )
            };
        }
        let (stride, step) = (stride * ROW_BYTES, self.rows * ROW_BYTES);
        for (w, at) in w.chunks(TOGETHER).zip((0..).step_by(TOGETHER)) {
            let out = out[at..].as_mut_ptr();
            if let [w0, w1, w2, w3] = w {
                // SAFETY: see above.
                unsafe {
                    asm!(
                        "tilezero tmm0", "tilezero tmm1", "tilezero tmm2", "tilezero tmm3",
                        "2:",
                        "tileloadd tmm4, [{x} + {row}]", "add {x}, {step}",
                        panel!("0"), panel!("1"), panel!("2"), panel!("3"),
                        "dec {n}", "jnz 2b",
                        "tilestored [{out} + {stride}], tmm0", "tilestored [{out} + {stride} + 64], tmm1",
                        "tilestored [{out} + {stride} + 128], tmm2", "tilestored [{out} + {stride} + 192], tmm3",
                        x = inout(reg) x.as_ptr() => _, n = inout(reg) groups => _, out = in(reg) out,
                        w0 = inout(reg) w0.as_ptr() => _, w1 = inout(reg) w1.as_ptr() => _,
                        w2 = inout(reg) w2.as_ptr() => _, w3 = inout(reg) w3.as_ptr() => _,
                        stride = in(reg) stride, step = in(reg) step, row = in(reg) ROW_BYTES,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm6") _,
                        options(nostack)
                    );
                }
                continue;
            }
            for (w, place) in w.iter().zip(0..) {
                // SAFETY: see above; `place` counts panels.
                unsafe {
                    asm!(
                        "tilezero tmm0",
                        "2:", "tileloadd tmm4, [{x} + {row}]", "add {x}, {step}", panel!("0"), "dec {n}", "jnz 2b",
                        "tilestored [{out} + {stride}], tmm0",
                        x = inout(reg) x.as_ptr() => _, n = inout(reg) groups => _, out = in(reg) out.add(place),
                        w0 = inout(reg) w.as_ptr() => _,
                        stride = in(reg) stride, step = in(reg) step, row = in(reg) ROW_BYTES,
                        out("tmm0") _, out("tmm4") _, out("tmm6") _, options(nostack)
                    );
                }
            }
        }
    }

    /// Adds products of half groups, `sums[m · dims + d] += Σ x[i][m] · w[i][d]`, i in order.
    ///
    /// `x`: for each i, `rows` rows of sixteen words of which eight are read; `w`: for each i, its words, of which eight
    /// are read from `d · dim_words` on, d below `dims`.
    #[inline(always)]
    pub fn weigh(&mut self, x: &[u32], w: &[&[Words]], dim_words: usize, sums: &mut [[f32; LANES]], dims: usize) {
        assert!((1..=MOST).contains(&w.len()) && dims > 0 && x.len() >= w.len() * self.rows * WHOLE);
        assert!(w.iter().all(|w| w.len() >= dim_words * (dims - 1) + WHOLE / 2) && sums.len() >= self.rows * dims);
        macro_rules! dim {
            ($c:literal) => {
                concat!("tileloadd tmm7, [{at} + {row}]\n", "tdpbf16ps tmm", $c, ", tmm5, tmm7\n", "add {at}, {dim}\n")
            };
        }
        let (stride, step, dim) = (dims * ROW_BYTES, self.rows * ROW_BYTES, dim_words * ROW_BYTES);
        let mut begins = [std::ptr::null::<Words>(); MOST];
        for (begin, w) in begins.iter_mut().zip(w) {
            *begin = w.as_ptr();
        }
        let mut first = 0;
        while first < dims {
            let sums = sums[first..].as_mut_ptr();
            let (x, w, n, from) = (x.as_ptr(), begins.as_ptr(), w.len(), first * dim);
            // SAFETY: see above; there are no more pointers than `begins` holds.
            unsafe {
                if dims - first >= TOGETHER {
                    asm!(
                        "tileloadd tmm0, [{sums} + {stride}]", "tileloadd tmm1, [{sums} + {stride} + 64]",
                        "tileloadd tmm2, [{sums} + {stride} + 128]", "tileloadd tmm3, [{sums} + {stride} + 192]",
                        "2:",
                        "mov {at}, [{w}]", "add {w}, 8", "add {at}, {from}",
                        "tileloadd tmm5, [{x} + {row}]", "add {x}, {step}",
                        dim!("0"), dim!("1"), dim!("2"), dim!("3"),
                        "dec {n}", "jnz 2b",
                        "tilestored [{sums} + {stride}], tmm0", "tilestored [{sums} + {stride} + 64], tmm1",
                        "tilestored [{sums} + {stride} + 128], tmm2", "tilestored [{sums} + {stride} + 192], tmm3",
                        x = inout(reg) x => _, w = inout(reg) w => _, n = inout(reg) n => _, at = out(reg) _,
                        sums = in(reg) sums, stride = in(reg) stride, step = in(reg) step, row = in(reg) ROW_BYTES,
                        dim = in(reg) dim, from = in(reg) from,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm5") _, out("tmm7") _,
                        options(nostack)
                    );
                    first += TOGETHER;
                } else {
                    asm!(
                        "tileloadd tmm0, [{sums} + {stride}]",
                        "2:",
                        "mov {at}, [{w}]", "add {w}, 8", "add {at}, {from}",
                        "tileloadd tmm5, [{x} + {row}]", "add {x}, {step}", dim!("0"), "dec {n}", "jnz 2b",
                        "tilestored [{sums} + {stride}], tmm0",
                        x = inout(reg) x => _, w = inout(reg) w => _, n = inout(reg) n => _, at = out(reg) _,
                        sums = in(reg) sums, stride = in(reg) stride, step = in(reg) step, row = in(reg) ROW_BYTES,
                        dim = in(reg) dim, from = in(reg) from,
                        out("tmm0") _, out("tmm5") _, out("tmm7") _, options(nostack)
                    );
                    first += 1;
                }
            }
        }
    }
}
