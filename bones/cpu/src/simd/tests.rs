//! Every instruction set against plain arithmetic.

use super::*;

/// Calls a closure-like kernel on every set.
macro_rules! on_every_set {
    ($s:ident => $body:expr) => {
        for isa in Isa::available() {
            struct Check;
            impl Kernel for Check {
                type Output = ();
                #[inline(always)]
                fn run<S: Simd>(self, $s: S) {
                    $body
                }
            }
            isa.run(Check);
        }
    };
}

fn stored<S: Simd>(s: S, v: S::V) -> [f32; LANES] {
    let mut out = [0.0; LANES];
    s.store(v, &mut out);
    out
}

fn ramp(from: f32, step: f32) -> [f32; LANES] {
    std::array::from_fn(|i| from + step * i as f32)
}

#[test]
fn unknown_sets_are_refused() {
    assert!(matches!(Isa::named("avx9000"), Err(IsaError::Unknown)));
    assert!(matches!(Isa::named(""), Err(IsaError::Unknown)));
    assert!(Isa::named("portable").is_ok());
}

#[test]
fn sums_agree_whatever_the_set() {
    on_every_set!(s => {
        let x = ramp(0.1, 1e7);
        let want = portable::Portable.sum(x);
        assert_eq!(s.sum(s.load(&x)), want);
        let four = [ramp(0.1, 1e7), ramp(-3.0, 0.7), ramp(1e-9, 2.5), [1.0; 16]];
        let sums = s.sum4([s.load(&four[0]), s.load(&four[1]), s.load(&four[2]), s.load(&four[3])]);
        assert_eq!(sums, portable::Portable.sum4(four));
        assert_eq!(s.highest(s.load(&ramp(-20.0, 1.0))), -5.0);
    });
}

#[test]
fn arithmetic_is_right_in_every_lane() {
    on_every_set!(s => {
        let (a, b, c) = (ramp(-4.0, 1.0), ramp(2.0, 3.0), ramp(0.5, -1.0));
        let (va, vb, vc) = (s.load(&a), s.load(&b), s.load(&c));
        assert_eq!(stored(s, s.add(va, vb)), std::array::from_fn(|i| a[i] + b[i]));
        assert_eq!(stored(s, s.mul(va, vb)), std::array::from_fn(|i| a[i] * b[i]));
        assert_eq!(stored(s, s.div(va, vb)), std::array::from_fn(|i| a[i] / b[i]));
        assert_eq!(stored(s, s.fma(va, vb, vc)), std::array::from_fn(|i| a[i] * b[i] + c[i]));
        assert_eq!(stored(s, s.max(va, vc)), std::array::from_fn(|i| a[i].max(c[i])));
        assert_eq!(stored(s, s.min(va, vc)), std::array::from_fn(|i| a[i].min(c[i])));
        assert_eq!(stored(s, s.splat(2.5)), [2.5; 16]);
        assert_eq!(stored(s, s.pow2(s.load(&ramp(-8.0, 1.0)))), std::array::from_fn(|i| 2_f32.powi(i as i32 - 8)));
        assert_eq!(stored(s, s.pow2(s.splat(127.0)))[3], 2_f32.powi(127));
        assert!(stored(s, s.max(vb, s.splat(f32::NAN)))[0].is_nan());
    });
}

#[test]
fn every_16_bit_float_is_widened_exactly() {
    on_every_set!(s => {
        for start in (0..=u16::MAX).step_by(LANES) {
            let bits: [u16; LANES] = std::array::from_fn(|i| start + i as u16);
            let want = bits.map(portable::f16_to_f32).map(f32::to_bits);
            assert_eq!(stored(s, s.widen_f16(&bits)).map(f32::to_bits), want);
        }
    });
    for (bits, value) in [(0x3c00, 1.0), (0xc000, -2.0), (0x7bff, 65504.0), (0x0001, 2_f32.powi(-24)), (0x8000, -0.0)] {
        assert_eq!(portable::f16_to_f32(bits).to_bits(), f32::to_bits(value));
    }
}

#[test]
fn integers_and_bf16_are_widened_exactly() {
    on_every_set!(s => {
        let bytes: [i8; LANES] = std::array::from_fn(|i| ((i * 17) as u8 ^ 0x80) as i8);
        assert_eq!(stored(s, s.widen_i8(&bytes)), bytes.map(f32::from));
        let halves: [u16; LANES] = std::array::from_fn(|i| 0x3f80 + 77 * i as u16);
        assert_eq!(stored(s, s.widen_bf16(&halves)), halves.map(|h| f32::from_bits(u32::from(h) << 16)));
        let packed: [u8; LANES] = std::array::from_fn(|i| (i | (15 - i) << 4) as u8);
        let [low, high] = s.nibbles(&packed, 0.5, -3.0);
        assert_eq!(stored(s, low), ramp(-3.0, 0.5));
        assert_eq!(stored(s, high), ramp(4.5, -0.5));
    });
}

#[test]
fn exp_is_close_and_saturates() {
    on_every_set!(s => {
        let mut worst = 0.0_f64;
        for step in 0..20_000 {
            let x = ramp(-86.9 + step as f32 * 0.008_73, 0.000_5);
            for (got, x) in stored(s, exp(s, s.load(&x))).into_iter().zip(x) {
                worst = worst.max((f64::from(got) / f64::from(x.min(88.0)).exp() - 1.0).abs());
            }
        }
        assert!(worst < 2.5e-7, "{worst}");
        let ends = [f32::NEG_INFINITY, -1e9, 0.0, 1e9, f32::INFINITY, f32::NAN];
        let x: [f32; LANES] = std::array::from_fn(|i| ends[i % 6]);
        let got = stored(s, exp(s, s.load(&x)));
        assert!(got[0] < 2e-38 && got[1] < 2e-38 && got[2] == 1.0 && got[3].is_finite() && got[4].is_finite());
        assert!(got[5].is_nan());
        assert_eq!(stored(s, sigmoid(s, s.splat(0.0)))[7], 0.5);
    });
}
