//! Conversions between widths.

use super::*;

/// The value of a 16-bit float, from its definition.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    let magnitude = match exponent {
        0 => fraction * 2_f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (1024.0 + fraction) * 2_f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

#[test]
fn every_16_bit_float_is_widened_exactly() {
    on_every_set!(s => {
        for start in (0..=u16::MAX).step_by(LANES) {
            let bits: [u16; LANES] = std::array::from_fn(|i| start + i as u16);
            let got = stored(s, s.widen_f16(&bits));
            assert_eq!(got.map(f32::to_bits), bits.map(f16_to_f32).map(f32::to_bits));
            for (got, bits) in got.into_iter().zip(bits) {
                let want = half(bits);
                assert!(f64::from(got).to_bits() == want.to_bits() || got.is_nan() && want.is_nan(), "{bits:#x}");
            }
        }
    });
}

/// The nearest bfloat16, ties to even; what lies half a step beyond the largest becomes infinite.
fn nearest(x: f32) -> u16 {
    let value = |upper: u32| match f32::from_bits(upper << 16) {
        infinite if infinite.is_infinite() => f64::from(f32::from_bits(0x7f00_0000)).copysign(infinite.into()) * 2.0,
        finite => f64::from(finite),
    };
    let lower = x.to_bits() >> 16;
    let distances = [lower, lower + 1].map(|upper| (value(upper) - f64::from(x)).abs());
    let up = distances[1] < distances[0] || distances[1] == distances[0] && lower % 2 == 1;
    (lower + u32::from(up)) as u16
}

#[test]
fn bfloat16_is_the_nearest_and_ties_go_to_the_even_one() {
    on_every_set!(s => {
        for upper in 0..=u32::from(u16::MAX) {
            let rests = [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff, 0x4000, 0xc000];
            let x: [f32; LANES] = std::array::from_fn(|i| f32::from_bits(upper << 16 | rests[i % 8]));
            let got = s.narrow_bf16(s.load(&x));
            for (got, x) in got.into_iter().zip(x) {
                if x.is_nan() {
                    assert!(f32::from_bits(u32::from(got) << 16).is_nan(), "{x}");
                    assert_eq!(got >> 15, (x.to_bits() >> 31) as u16);
                } else if x.is_infinite() {
                    assert_eq!(u32::from(got), x.to_bits() >> 16);
                } else {
                    let is_lost = x.is_subnormal() && got << 1 == 0 && got >> 15 == (x.to_bits() >> 31) as u16;
                    assert!(got == nearest(x) || is_lost, "{x:e}");
                    assert_eq!(to_bf16(x), nearest(x), "{x:e}");
                }
            }
        }
    });
}

#[test]
fn bytes_are_the_nearest_and_ties_go_to_the_even_one() {
    on_every_set!(s => {
        for n in -126..=126 {
            let rests = [-0.5, -0.499, -0.25, 0.0, 0.25, 0.499, 0.5, 0.0];
            let x: [f32; LANES] = std::array::from_fn(|i| n as f32 + rests[i % 8] * if i < 8 { 1.0 } else { -1.0 });
            let want = x.map(|x| {
                let (below, rest) = (x.floor(), x - x.floor());
                let up = rest > 0.5 || rest == 0.5 && below as i32 % 2 != 0;
                below as i8 + i8::from(up)
            });
            assert_eq!(s.narrow_i8(s.load(&x)), want);
        }
        assert_eq!(s.narrow_i8(s.splat(127.0)), [127; LANES]);
        assert_eq!(s.narrow_i8(s.splat(-127.0)), [-127; LANES]);
        // Of a NaN nothing is promised but that lanes keep to themselves.
        let mut x = [3.0; LANES];
        x[5] = f32::NAN;
        let got = s.narrow_i8(s.load(&x));
        assert!((0..LANES).all(|i| i == 5 || got[i] == 3));
    });
}
