//! Arithmetic of floats, lane by lane and over lanes.

use super::*;

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
        assert_eq!(stored(s, s.splat(2.5)), [2.5; LANES]);
    });
}

#[test]
fn memory_is_read_and_written_wherever_it_begins() {
    on_every_set!(s => {
        s.prefetch(&[0_u8; 64], 1 << 20);
        let numbers: [f32; LANES + 7] = std::array::from_fn(|i| i as f32);
        for at in 0..=7 {
            let mut out = [-1.0_f32; LANES + 7];
            let from: &[f32; LANES] = numbers[at..at + LANES].try_into().unwrap();
            s.store(s.load(from), (&mut out[at..at + LANES]).try_into().unwrap());
            let place = |i: usize| if (at..at + LANES).contains(&i) { i as f32 } else { -1.0 };
            assert_eq!(out, std::array::from_fn(place));
        }
    });
}

#[test]
fn the_second_operand_of_a_comparison_passes_when_either_is_nan() {
    on_every_set!(s => {
        let nan = s.splat(f32::NAN);
        let one = s.splat(1.0);
        assert!(stored(s, s.max(one, nan)).iter().all(|x| x.is_nan()));
        assert!(stored(s, s.min(one, nan)).iter().all(|x| x.is_nan()));
        assert_eq!(stored(s, s.max(nan, one)), [1.0; LANES]);
        assert_eq!(stored(s, s.min(nan, one)), [1.0; LANES]);
        let (zero, minus) = (s.splat(0.0), s.splat(-0.0));
        assert!(stored(s, s.max(zero, minus)).iter().all(|x| x.is_sign_negative()));
        assert!(stored(s, s.min(minus, zero)).iter().all(|x| x.is_sign_positive()));
    });
}

#[test]
fn above_keeps_what_exceeds_the_bound_and_what_is_nan() {
    on_every_set!(s => {
        let x = [0.5, -0.5, 0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-40];
        let x: [f32; LANES] = std::array::from_fn(|i| x[i % 8]);
        let value = ramp(1.0, 1.0);
        let got = stored(s, s.above(s.load(&x), s.splat(0.0), s.load(&value)));
        let want = std::array::from_fn(|i| if x[i] > 0.0 || x[i].is_nan() { value[i] } else { 0.0 });
        assert_eq!(got, want);
        let nan = s.above(s.splat(1.0), s.splat(0.0), s.splat(f32::NAN));
        assert!(stored(s, nan)[9].is_nan());
        assert_eq!(stored(s, s.above(s.splat(-1.0), s.splat(0.0), s.splat(f32::NAN))), [0.0; LANES]);
    });
}

#[test]
fn sums_add_halves_whatever_the_set() {
    on_every_set!(s => {
        for x in [ramp(0.1, 1e7), ramp(-3.0, 0.7), ramp(1e-9, 2.5), ramp(-1e30, 1.3e29)] {
            let (mut want, mut len) = (x, LANES);
            while len > 1 {
                len /= 2;
                want = std::array::from_fn(|i| if i < len { want[i] + want[i + len] } else { 0.0 });
            }
            assert_eq!(s.sum(s.load(&x)).to_bits(), want[0].to_bits());
        }
    });
}

#[test]
fn the_highest_lane_is_found_wherever_it_is() {
    on_every_set!(s => {
        for lane in 0..LANES {
            for (others, highest) in [(-7.0, -2.5), (f32::NEG_INFINITY, -1e30), (0.0, f32::INFINITY)] {
                let mut x = [others; LANES];
                x[lane] = highest;
                assert_eq!(s.highest(s.load(&x)), highest);
            }
        }
        assert_eq!(s.highest(s.splat(f32::NEG_INFINITY)), f32::NEG_INFINITY);
    });
}

#[test]
fn magnitude_is_the_largest_of_both_vectors_or_nan() {
    on_every_set!(s => {
        for at in 0..2 * LANES {
            for (others, largest) in [(-1.0, -3.5), (-0.0, 1e-45), (5.0, f32::NEG_INFINITY), (f32::INFINITY, f32::NAN)] {
                let mut x = [[others; LANES]; 2];
                x[at / LANES][at % LANES] = largest;
                let got = s.magnitude(s.load(&x[0]), s.load(&x[1]));
                assert!(got == largest.abs() || got.is_nan() && largest.is_nan(), "{got} for {largest}");
                x[at / LANES][at % LANES] = -largest;
                let negated = s.magnitude(s.load(&x[0]), s.load(&x[1]));
                assert_eq!(negated.to_bits(), got.to_bits());
            }
        }
        assert_eq!(s.magnitude(s.splat(-0.0), s.splat(0.0)).to_bits(), 0);
    });
}
