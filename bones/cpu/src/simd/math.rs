//! Functions of vectors.

use super::Simd;

/// eˣ to within 2 units in the last place; below −87 it stays at e⁻⁸⁷, above 88 at e⁸⁸. NaN passes.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::V) -> S::V {
    // ln 2 in two parts: n · HIGH is exact for every n that occurs.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Adding and subtracting 1.5 · 2²³ rounds to a whole number.
    const ROUND: f32 = 12_582_912.0;
    const SERIES: [f32; 8] = [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let x = s.max(s.splat(-87.0), x);
    let x = s.min(s.splat(88.0), x);
    let n = s.add(s.fma(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND)), s.splat(-ROUND));
    let r = s.fma(n, s.splat(-LN2_HIGH), x);
    let r = s.fma(n, s.splat(-LN2_LOW), r);
    let mut value = s.splat(SERIES[0]);
    for coefficient in &SERIES[1..] {
        value = s.fma(value, r, s.splat(*coefficient));
    }
    s.mul(value, s.pow2(n))
}

/// 1 / (1 + e⁻ˣ)
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::V) -> S::V {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.mul(x, s.splat(-1.0)))))
}

/// The hyperbolic tangent to within 2⁻²³ of it, absolutely.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::V) -> S::V {
    s.fma(s.splat(2.0), sigmoid(s, s.mul(x, s.splat(2.0))), s.splat(-1.0))
}
