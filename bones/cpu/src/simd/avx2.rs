//! AVX2 with FMA and F16C: a vector is two registers.
// Half of the intrinsics that there are.
#![allow(clippy::wildcard_imports)]

use super::{Kernel, LANES, Simd};
use std::arch::x86_64::*;

/// Proof of AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    /// Asks the processor.
    pub fn detect() -> Option<Self> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

type V = [__m256; 2];

/// An expression of intrinsics that touch no memory, or memory that an array reference in scope covers.
macro_rules! intrinsics {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that the processor has the instructions; loads and stores go through references to
        // arrays of the exact size and need no alignment.
        unsafe { $($body)* }
    };
}

impl Avx2 {
    /// Adds lanes i, i + 4, i + 8 and i + 12: the halves first. `self` is the proof.
    #[allow(clippy::unused_self)]
    #[inline(always)]
    fn quarter(self, v: V) -> __m128 {
        intrinsics! {
            let eight = _mm256_add_ps(v[0], v[1]);
            _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
        }
    }
}

impl Simd for Avx2 {
    type V = V;

    #[inline]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        /// # Safety
        /// The processor has the features.
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn inner<K: Kernel>(set: Avx2, kernel: K) -> K::Output {
            kernel.run(set)
        }
        // SAFETY: `self` proves that the processor has the features.
        unsafe { inner(self, kernel) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        intrinsics! { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        intrinsics! { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }

    #[inline(always)]
    fn prefetch(self, line: &[u8; 64]) {
        intrinsics! { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; LANES]) {
        intrinsics! {
            _mm256_storeu_ps(to.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), v[1]);
        }
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        intrinsics! { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        intrinsics! { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        intrinsics! { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        intrinsics! { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        intrinsics! { [_mm256_max_ps(a[0], b[0]), _mm256_max_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        intrinsics! { [_mm256_min_ps(a[0], b[0]), _mm256_min_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn pow2(self, n: V) -> V {
        let half = |n: __m256| {
            intrinsics! {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
            }
        };
        [half(n[0]), half(n[1])]
    }

    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        intrinsics! {
            let four = self.quarter(v);
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn sum4(self, v: [V; 4]) -> [f32; 4] {
        intrinsics! {
            let [a, b, c, d] = [self.quarter(v[0]), self.quarter(v[1]), self.quarter(v[2]), self.quarter(v[3])];
            let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
            let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
            let sums = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
            let mut out = [0.0; 4];
            _mm_storeu_ps(out.as_mut_ptr(), sums);
            out
        }
    }

    #[inline(always)]
    fn highest(self, v: V) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    fn widen_bf16(self, x: &[u16; LANES]) -> V {
        intrinsics! {
            let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().add(8).cast()));
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<16>(high)),
            ]
        }
    }

    #[inline(always)]
    fn widen_f16(self, x: &[u16; LANES]) -> V {
        intrinsics! {
            [
                _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
                _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().add(8).cast())),
            ]
        }
    }

    #[inline(always)]
    fn widen_i8(self, x: &[i8; LANES]) -> V {
        intrinsics! {
            let bytes = _mm_loadu_si128(x.as_ptr().cast());
            [
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
                _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))),
            ]
        }
    }

    #[inline(always)]
    fn nibbles(self, x: &[u8; LANES], scale: f32, base: f32) -> [V; 2] {
        intrinsics! {
            let bytes = _mm_loadu_si128(x.as_ptr().cast());
            let mask = _mm_set1_epi8(15);
            let low = _mm_and_si128(bytes, mask);
            let high = _mm_and_si128(_mm_srli_epi16::<4>(bytes), mask);
            let (scale, base) = (_mm256_set1_ps(scale), _mm256_set1_ps(base));
            let value = |q: __m128i| _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(q)), base);
            [
                [value(low), value(_mm_srli_si128::<8>(low))],
                [value(high), value(_mm_srli_si128::<8>(high))],
            ]
        }
    }
}
