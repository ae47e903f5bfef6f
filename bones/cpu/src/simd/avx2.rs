//! AVX2 with FMA and F16C: a vector is two registers.
// Half of the intrinsics that there are.
#![allow(clippy::wildcard_imports)]

use super::portable::{magnitude, to_bf16};
use super::{Kernel, LANES, Simd, Words};
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

/// The upper half of a word.
const UPPER: u32 = 0xffff_0000;

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
    fn prefetch<T>(self, here: &T, ahead: usize) {
        // A prefetch of an address that is not mapped does nothing.
        intrinsics! { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(here).cast::<i8>().wrapping_add(ahead)) }
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
    fn above(self, x: V, bound: V, value: V) -> V {
        intrinsics! {
            [_mm256_and_ps(_mm256_cmp_ps::<_CMP_NLE_UQ>(x[0], bound[0]), value[0]), _mm256_and_ps(_mm256_cmp_ps::<_CMP_NLE_UQ>(x[1], bound[1]), value[1])]
        }
    }

    #[inline(always)]
    fn pow2(self, n: V) -> V {
        intrinsics! {
            let bias = _mm256_set1_epi32(127);
            let low = _mm256_add_epi32(_mm256_cvtps_epi32(n[0]), bias);
            let high = _mm256_add_epi32(_mm256_cvtps_epi32(n[1]), bias);
            [
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(low)),
                _mm256_castsi256_ps(_mm256_slli_epi32::<23>(high)),
            ]
        }
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
    fn highest(self, v: V) -> f32 {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
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
    fn magnitude(self, a: V, b: V) -> f32 {
        let mut lanes = [[0.0; LANES]; 2];
        self.store(a, &mut lanes[0]);
        self.store(b, &mut lanes[1]);
        magnitude(&lanes)
    }

    #[inline(always)]
    fn narrow_bf16(self, v: V) -> [u16; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(v, &mut lanes);
        lanes.map(to_bf16)
    }

    #[inline(always)]
    fn narrow_i8(self, v: V) -> [i8; LANES] {
        intrinsics! {
            // Packing keeps to halves of the registers: their order is restored at the end.
            let words = _mm256_packs_epi32(_mm256_cvtps_epi32(v[0]), _mm256_cvtps_epi32(v[1]));
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(words);
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            let mut out = [0; LANES];
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
            out
        }
    }

    type W = [__m256i; 2];
    type I = [__m256i; 2];

    #[inline(always)]
    fn words(self, x: &Words) -> Self::W {
        intrinsics! { [_mm256_loadu_si256(x.as_ptr().cast()), _mm256_loadu_si256(x.as_ptr().add(32).cast())] }
    }

    #[inline(always)]
    fn low_nibbles(self, w: Self::W) -> Self::W {
        intrinsics! { [_mm256_and_si256(w[0], _mm256_set1_epi8(15)), _mm256_and_si256(w[1], _mm256_set1_epi8(15))] }
    }

    #[inline(always)]
    fn high_nibbles(self, w: Self::W) -> Self::W {
        intrinsics! { [_mm256_and_si256(_mm256_srli_epi16::<4>(w[0]), _mm256_set1_epi8(15)), _mm256_and_si256(_mm256_srli_epi16::<4>(w[1]), _mm256_set1_epi8(15))] }
    }

    #[inline(always)]
    fn ints(self, x: i32) -> Self::I {
        intrinsics! { [_mm256_set1_epi32(x); 2] }
    }

    #[inline(always)]
    fn add_ints(self, a: Self::I, b: Self::I) -> Self::I {
        intrinsics! { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn pin<const N: usize>(self, _: &mut [Self::I; N]) {}

    #[inline(always)]
    fn floats(self, v: Self::I) -> V {
        intrinsics! { [_mm256_cvtepi32_ps(v[0]), _mm256_cvtepi32_ps(v[1])] }
    }

    #[inline(always)]
    fn dot_f32(self, acc: V, w: Self::W, x: u32) -> V {
        intrinsics! {
            let x = _mm256_set1_ps(f32::from_bits(x));
            [_mm256_fmadd_ps(_mm256_castsi256_ps(w[0]), x, acc[0]), _mm256_fmadd_ps(_mm256_castsi256_ps(w[1]), x, acc[1])]
        }
    }

    #[inline(always)]
    fn dot_bf16(self, acc: V, w: Self::W, x: u32) -> V {
        intrinsics! {
            let (low, high) = (_mm256_set1_ps(f32::from_bits(x << 16)), _mm256_set1_ps(f32::from_bits(x & UPPER)));
            let mask = _mm256_set1_epi32(UPPER as i32);
            let mut out = acc;
            for i in 0..2 {
                let even = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w[i]));
                let odd = _mm256_castsi256_ps(_mm256_and_si256(w[i], mask));
                out[i] = _mm256_fmadd_ps(even, low, _mm256_fmadd_ps(odd, high, acc[i]));
            }
            out
        }
    }

    #[inline(always)]
    fn dot_i8(self, acc: Self::I, w: Self::W, x: u32) -> Self::I {
        // Bytes are widened to 16 bits: `vpmaddubsw` would saturate.
        intrinsics! {
            let x = _mm256_set1_epi32(x as i32);
            let (even, odd) = (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)), _mm256_srai_epi16::<8>(x));
            let mut out = acc;
            for i in 0..2 {
                let low = _mm256_madd_epi16(_mm256_and_si256(w[i], _mm256_set1_epi16(255)), even);
                let high = _mm256_madd_epi16(_mm256_srli_epi16::<8>(w[i]), odd);
                out[i] = _mm256_add_epi32(acc[i], _mm256_add_epi32(low, high));
            }
            out
        }
    }
}
