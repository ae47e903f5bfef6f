//! Functions of vectors against those of 64 bits.

use super::*;

/// Sixteen numbers for each step from `from` to `to`.
fn between(from: f32, to: f32, steps: usize) -> impl Iterator<Item = [f32; LANES]> {
    let step = (to - from) / (steps * LANES) as f32;
    (0..steps).map(move |i| ramp(from + step * (i * LANES) as f32, step))
}

#[test]
fn powers_of_two_are_exact() {
    on_every_set!(s => {
        for n in (-126..=127).step_by(LANES) {
            let n: [i32; LANES] = std::array::from_fn(|i| (n + i as i32).min(127));
            let got = stored(s, s.pow2(s.load(&n.map(|n| n as f32))));
            assert_eq!(got.map(f64::from), n.map(|n| 2_f64.powi(n)));
        }
    });
}

#[test]
fn exp_is_close_and_saturates() {
    on_every_set!(s => {
        let mut worst = 0.0_f64;
        for x in between(-86.9, 87.9, 20_000) {
            for (got, x) in stored(s, exp(s, s.load(&x))).into_iter().zip(x) {
                worst = worst.max((f64::from(got) / f64::from(x).exp() - 1.0).abs());
            }
        }
        assert!(worst < 2.5e-7, "{worst}");
        let ends = [f32::NEG_INFINITY, -1e9, -1e30, 1e9, f32::INFINITY, f32::NAN, 0.0, -0.0];
        let x: [f32; LANES] = std::array::from_fn(|i| ends[i % 8]);
        let got = stored(s, exp(s, s.load(&x)));
        assert!(got[..3].iter().all(|&low| low == got[0] && low > 1e-38 && low < 2e-38), "{got:?}");
        assert!(got[3..5].iter().all(|&high| high == got[3] && high > 1.6e38 && high.is_finite()), "{got:?}");
        assert!(got[5].is_nan());
        // What attention merges with an unchanged maximum keeps its bits.
        assert_eq!(got[6..8], [1.0, 1.0]);
    });
}

#[test]
fn sigmoid_and_tanh_are_close_and_saturate() {
    on_every_set!(s => {
        let (mut worst, mut worst_relative) = (0.0_f64, 0.0_f64);
        for x in between(-20.0, 20.0, 8_000) {
            let (tanhs, sigmoids) = (stored(s, tanh(s, s.load(&x))), stored(s, sigmoid(s, s.load(&x))));
            for i in 0..LANES {
                let x = f64::from(x[i]);
                worst = worst.max((f64::from(tanhs[i]) - x.tanh()).abs());
                worst_relative = worst_relative.max((f64::from(sigmoids[i]) * (1.0 + (-x).exp()) - 1.0).abs());
            }
        }
        assert!(worst <= 2_f64.powi(-23) * 1.5, "{worst}");
        assert!(worst_relative < 4e-7, "{worst_relative}");
        let ends = [f32::NEG_INFINITY, -1e30, f32::INFINITY, 1e30, 0.0, f32::NAN];
        let x: [f32; LANES] = std::array::from_fn(|i| ends[i % 6]);
        let got = stored(s, tanh(s, s.load(&x)));
        assert_eq!(got[..5], [-1.0, -1.0, 1.0, 1.0, 0.0]);
        assert!(got[5].is_nan());
        assert_eq!(stored(s, sigmoid(s, s.splat(0.0))), [0.5; LANES]);
        assert!(stored(s, sigmoid(s, s.splat(f32::NAN)))[3].is_nan());
    });
}
