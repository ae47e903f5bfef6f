//! AVX-512: a vector is a register.
// Half of the intrinsics that there are.
#![allow(clippy::wildcard_imports)]
// Built only by compilers that have these instructions: see build.rs.
#![allow(clippy::incompatible_msrv)]

use super::{Kernel, LANES, Simd};
use std::arch::x86_64::*;

/// Proof of AVX-512 F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    /// Asks the processor.
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

/// An expression of intrinsics that touch no memory, or memory that an array reference in scope covers.
macro_rules! intrinsics {
    ($($body:tt)*) => {
        // SAFETY: `self` proves that the processor has the instructions; loads and stores go through references to
        // arrays of the exact size and need no alignment.
        unsafe { $($body)* }
    };
}

impl Avx512 {
    /// Adds lanes i, i + 4, i + 8 and i + 12: the halves first. `self` is the proof.
    #[allow(clippy::unused_self)]
    #[inline(always)]
    fn quarter(self, v: __m512) -> __m128 {
        intrinsics! {
            let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
        }
    }
}

impl Simd for Avx512 {
    type V = __m512;

    #[inline]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        /// # Safety
        /// The processor has the features.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
        unsafe fn inner<K: Kernel>(set: Avx512, kernel: K) -> K::Output {
            kernel.run(set)
        }
        // SAFETY: `self` proves that the processor has the features.
        unsafe { inner(self, kernel) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        intrinsics! { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        intrinsics! { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn prefetch(self, line: &[u8; 64]) {
        intrinsics! { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32; LANES]) {
        intrinsics! { _mm512_storeu_ps(to.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        intrinsics! { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        intrinsics! { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        intrinsics! { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        intrinsics! { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        intrinsics! { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        intrinsics! { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    fn pow2(self, n: __m512) -> __m512 {
        intrinsics! {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        }
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        intrinsics! {
            let four = self.quarter(v);
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        }
    }

    #[inline(always)]
    fn sum4(self, v: [__m512; 4]) -> [f32; 4] {
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
    fn highest(self, v: __m512) -> f32 {
        intrinsics! { _mm512_reduce_max_ps(v) }
    }

    #[inline(always)]
    fn widen_bf16(self, x: &[u16; LANES]) -> __m512 {
        intrinsics! {
            let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(words))
        }
    }

    #[inline(always)]
    fn widen_f16(self, x: &[u16; LANES]) -> __m512 {
        intrinsics! { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn widen_i8(self, x: &[i8; LANES]) -> __m512 {
        intrinsics! { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn nibbles(self, x: &[u8; LANES], scale: f32, base: f32) -> [__m512; 2] {
        intrinsics! {
            // A table of the sixteen possible values; the permutation looks at the low four bits of a lane only.
            let steps = _mm512_setr_ps(
                0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
            );
            let table = _mm512_fmadd_ps(_mm512_set1_ps(scale), steps, _mm512_set1_ps(base));
            let low = _mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            let high = _mm512_srli_epi32::<4>(low);
            [_mm512_permutexvar_ps(low, table), _mm512_permutexvar_ps(high, table)]
        }
    }
}
