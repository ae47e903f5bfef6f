//! AVX-512: a vector is a register.
// Half of the intrinsics that there are.
#![allow(clippy::wildcard_imports)]
// Built only by compilers that have these instructions: see build.rs.
#![allow(clippy::incompatible_msrv)]

use super::amx::Amx;
use super::{Kernel, LANES, Simd, Words};
use std::arch::asm;
use std::arch::x86_64::*;

/// Proof of AVX-512 F, BW, DQ, VL, VNNI and BF16, perhaps with the matrix unit beside it.
#[derive(Clone, Copy)]
pub struct Avx512(Option<Amx>);

impl Avx512 {
    /// Asks the processor.
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx512bf16")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        has.then_some(Self(None))
    }

    /// Asks for the matrix unit too.
    pub fn detect_with_matrix_unit() -> Option<Self> {
        Self::detect()?;
        Some(Self(Some(Amx::detect()?)))
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

/// The same numbers, of whose making the compiler knows nothing.
///
/// # Safety
/// The processor has AVX-512 F.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn pinned(mut v: __m512i) -> __m512i {
    // SAFETY: no instruction.
    unsafe { asm!("/* {0} */", inout(zmm_reg) v, options(pure, nomem, nostack, preserves_flags)) };
    v
}

impl Simd for Avx512 {
    type V = __m512;

    #[inline]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        /// # Safety
        /// The processor has the features.
        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
        unsafe fn inner<K: Kernel>(set: Avx512, kernel: K) -> K::Output {
            kernel.run(set)
        }
        // SAFETY: `self` proves that the processor has the features.
        unsafe { inner(self, kernel) }
    }

    #[inline(always)]
    fn matrix_unit(self) -> Option<Amx> {
        self.0
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
    fn prefetch<T>(self, here: &T, ahead: usize) {
        // A prefetch of an address that is not mapped does nothing.
        intrinsics! { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(here).cast::<i8>().wrapping_add(ahead)) }
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
    fn above(self, x: __m512, bound: __m512, value: __m512) -> __m512 {
        intrinsics! { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_NLE_UQ>(x, bound), value) }
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
    fn highest(self, v: __m512) -> f32 {
        intrinsics! { _mm512_reduce_max_ps(v) }
    }

    #[inline(always)]
    fn widen_f16(self, x: &[u16; LANES]) -> __m512 {
        intrinsics! { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn magnitude(self, a: __m512, b: __m512) -> f32 {
        // Without their signs floats are ordered as integers are, NaN above all.
        intrinsics! {
            let (a, b) = (_mm512_castps_si512(_mm512_abs_ps(a)), _mm512_castps_si512(_mm512_abs_ps(b)));
            f32::from_bits(_mm512_reduce_max_epi32(_mm512_max_epi32(a, b)) as u32)
        }
    }

    #[inline(always)]
    fn narrow_bf16(self, v: __m512) -> [u16; LANES] {
        // SAFETY: 32 bytes either way.
        intrinsics! { std::mem::transmute::<__m256bh, [u16; LANES]>(_mm512_cvtneps_pbh(v)) }
    }

    #[inline(always)]
    fn narrow_i8(self, v: __m512) -> [i8; LANES] {
        intrinsics! {
            let mut out = [0; LANES];
            _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
            out
        }
    }

    type W = __m512i;
    type I = __m512i;

    #[inline(always)]
    fn words(self, x: &Words) -> __m512i {
        intrinsics! { _mm512_loadu_si512(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn low_nibbles(self, w: __m512i) -> __m512i {
        intrinsics! { _mm512_and_si512(w, _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn high_nibbles(self, w: __m512i) -> __m512i {
        intrinsics! { _mm512_and_si512(_mm512_srli_epi16::<4>(w), _mm512_set1_epi8(15)) }
    }

    #[inline(always)]
    fn ints(self, x: i32) -> __m512i {
        intrinsics! { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    fn add_ints(self, a: __m512i, b: __m512i) -> __m512i {
        intrinsics! { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn pin<const N: usize>(self, v: &mut [__m512i; N]) {
        for v in v {
            *v = intrinsics! { pinned(*v) };
        }
    }

    #[inline(always)]
    fn floats(self, v: __m512i) -> __m512 {
        intrinsics! { _mm512_cvtepi32_ps(v) }
    }

    #[inline(always)]
    fn dot_f32(self, acc: __m512, w: __m512i, x: u32) -> __m512 {
        intrinsics! { _mm512_fmadd_ps(_mm512_castsi512_ps(w), _mm512_set1_ps(f32::from_bits(x)), acc) }
    }

    #[inline(always)]
    fn dot_bf16(self, acc: __m512, w: __m512i, x: u32) -> __m512 {
        intrinsics! {
            // The types of the vectors differ in name only.
            let w = std::mem::transmute::<__m512i, __m512bh>(w);
            let x = std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi32(x as i32));
            _mm512_dpbf16_ps(acc, w, x)
        }
    }

    #[inline(always)]
    fn dot_i8(self, acc: __m512i, w: __m512i, x: u32) -> __m512i {
        intrinsics! { _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(x as i32)) }
    }
}
