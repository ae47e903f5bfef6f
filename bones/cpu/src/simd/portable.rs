//! Plain loops, which the compiler turns into whatever the target guarantees. Products are rounded before they are
//! added.

use super::{Kernel, LANES, Simd, Words};

/// Always there.
#[derive(Clone, Copy)]
pub struct Portable;

type V = [f32; LANES];

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// A 16-bit float's value, exactly.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1f), u32::from(bits & 0x3ff));
    match exponent {
        // A subnormal: fraction · 2⁻²⁴.
        0 => f32::from_bits(sign | (fraction as f32 * f32::from_bits(103 << 23)).to_bits()),
        31 if fraction == 0 => f32::from_bits(sign | 0x7f80_0000),
        // Conversions quieten a NaN.
        31 => f32::from_bits(sign | 0x7fc0_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Rounds to the nearest bfloat16, ties to even; NaN stays NaN.
pub fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Largest magnitude; NaN where there is one: without their signs floats are ordered as integers are, NaN above all.
#[inline(always)]
pub fn magnitude(lanes: &[V; 2]) -> f32 {
    f32::from_bits(lanes.iter().flatten().fold(0, |largest, x| largest.max(x.to_bits() & 0x7fff_ffff)))
}

/// One lane's word.
#[inline(always)]
fn word(words: &Words, lane: usize) -> u32 {
    u32::from_le_bytes([words[4 * lane], words[4 * lane + 1], words[4 * lane + 2], words[4 * lane + 3]])
}

impl Simd for Portable {
    type V = V;

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> V {
        *x
    }

    #[inline(always)]
    fn prefetch<T>(self, _: &T, _: usize) {}

    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; LANES]) {
        *to = v;
    }

    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        self.add(self.mul(a, b), c)
    }

    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn above(self, x: V, bound: V, value: V) -> V {
        std::array::from_fn(|i| if x[i] <= bound[i] { 0.0 } else { value[i] })
    }

    #[inline(always)]
    fn pow2(self, n: V) -> V {
        n.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }

    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        let eight: [f32; 8] = std::array::from_fn(|i| v[i] + v[i + 8]);
        let four: [f32; 4] = std::array::from_fn(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[inline(always)]
    fn highest(self, v: V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    #[inline(always)]
    fn widen_f16(self, x: &[u16; LANES]) -> V {
        x.map(f16_to_f32)
    }

    #[inline(always)]
    fn magnitude(self, a: V, b: V) -> f32 {
        magnitude(&[a, b])
    }

    #[inline(always)]
    fn narrow_bf16(self, v: V) -> [u16; LANES] {
        v.map(to_bf16)
    }

    #[inline(always)]
    fn narrow_i8(self, v: V) -> [i8; LANES] {
        v.map(|v| v.round_ties_even() as i8)
    }

    type W = Words;
    type I = [i32; LANES];

    #[inline(always)]
    fn words(self, x: &Words) -> Words {
        *x
    }

    #[inline(always)]
    fn low_nibbles(self, w: Words) -> Words {
        w.map(|byte| byte & 15)
    }

    #[inline(always)]
    fn high_nibbles(self, w: Words) -> Words {
        w.map(|byte| byte >> 4)
    }

    #[inline(always)]
    fn ints(self, x: i32) -> Self::I {
        [x; LANES]
    }

    #[inline(always)]
    fn add_ints(self, a: Self::I, b: Self::I) -> Self::I {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn pin<const N: usize>(self, _: &mut [Self::I; N]) {}

    #[inline(always)]
    fn floats(self, v: Self::I) -> V {
        v.map(|v| v as f32)
    }

    #[inline(always)]
    fn dot_f32(self, acc: V, w: Words, x: u32) -> V {
        self.fma(std::array::from_fn(|i| f32::from_bits(word(&w, i))), [f32::from_bits(x); LANES], acc)
    }

    #[inline(always)]
    fn dot_bf16(self, acc: V, w: Words, x: u32) -> V {
        let even = std::array::from_fn(|i| f32::from_bits(word(&w, i) << 16));
        let odd = std::array::from_fn(|i| f32::from_bits(word(&w, i) & 0xffff_0000));
        let acc = self.fma(odd, [f32::from_bits(x & 0xffff_0000); LANES], acc);
        self.fma(even, [f32::from_bits(x << 16); LANES], acc)
    }

    #[inline(always)]
    fn dot_i8(self, acc: Self::I, w: Words, x: u32) -> Self::I {
        let x = x.to_le_bytes().map(|byte| i32::from(byte as i8));
        std::array::from_fn(|i| (0..4).fold(acc[i], |sum, j| sum + i32::from(w[4 * i + j]) * x[j]))
    }
}
