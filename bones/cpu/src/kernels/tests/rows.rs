//! What is done to single rows.

use super::{bits, noise};
use crate::kernels::{AddNormed, Gate, SoftCap, TurnHeads};
use crate::simd::Isa;
use proptest::prelude::*;
use tie_bones_model::description::Activation;

/// What an activation is by its definition.
fn activated(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
            x * (1.0 + inner.tanh()) / 2.0
        }
    }
}

fn normed(x: &[f32], weight: &[f32], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
    x.iter().zip(weight).map(|(&x, &weight)| f64::from(x) / (mean + eps).sqrt() * f64::from(weight)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn gates_are_right_for_odd_widths(len in 1_usize..70, size in 0.1_f32..30.0) {
        let (gate, up): (Vec<f32>, _) = (noise(1, len).iter().map(|x| x * size).collect(), noise(2, len));
        for isa in Isa::available() {
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let mut out = vec![f32::NAN; len];
                isa.run(Gate { activation, gate: &gate, up: &up, out: &mut out });
                for i in 0..len {
                    let want = activated(activation, gate[i].into()) * f64::from(up[i]);
                    prop_assert!((f64::from(out[i]) - want).abs() < 1e-6 * f64::from(size.max(1.0)));
                }
            }
        }
    }

    #[test]
    fn normed_rows_are_added(len in 1_usize..70) {
        let (x, y, weight) = (noise(3, len), noise(4, len), noise(5, len));
        let want = normed(&y, &weight, 1e-5);
        for isa in Isa::available() {
            let mut sum = x.clone();
            isa.run(AddNormed { x: &mut sum, y: &y, weight: &weight, eps: 1e-5 });
            for i in 0..len {
                prop_assert!((f64::from(sum[i]) - f64::from(x[i]) - want[i]).abs() < 2e-6);
            }
        }
    }

    #[test]
    fn caps_bound_every_element(len in 1_usize..70, cap in 0.5_f32..50.0) {
        let x: Vec<f32> = noise(6, len).iter().map(|x| x * 100.0).collect();
        for isa in Isa::available() {
            let mut capped = x.clone();
            isa.run(SoftCap { x: &mut capped, cap });
            for (x, capped) in x.iter().zip(capped) {
                let want = f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh();
                prop_assert!((want - f64::from(capped)).abs() < 1e-6 * f64::from(cap) && capped.abs() <= cap);
            }
        }
    }

    #[test]
    fn heads_are_normed_and_turned(count in 1_usize..4, dim in 1_usize..50, pairs in 0_usize..25, has_norm: bool) {
        let pairs = pairs.min(dim / 2);
        let (heads, weight) = (noise(7, count * dim), noise(8, dim));
        let (cosines, sines): (Vec<f32>, Vec<f32>) = noise(9, pairs).iter().map(|x| (x.cos(), x.sin())).unzip();
        for isa in Isa::available() {
            let mut turned = heads.clone();
            let norm = has_norm.then_some((&weight[..], 1e-6));
            isa.run(TurnHeads { heads: &mut turned, dim, norm, turns: (&cosines, &sines) });
            for (head, turned) in heads.chunks_exact(dim).zip(turned.chunks_exact(dim)) {
                let x = if has_norm { normed(head, &weight, 1e-6) } else { head.iter().map(|&x| x.into()).collect() };
                for i in 0..dim {
                    let turn = |pair: usize| (f64::from(cosines[pair]), f64::from(sines[pair]));
                    let want = if i < pairs {
                        x[i] * turn(i).0 - x[i + pairs] * turn(i).1
                    } else if i < 2 * pairs {
                        x[i] * turn(i - pairs).0 + x[i - pairs] * turn(i - pairs).1
                    } else {
                        x[i]
                    };
                    prop_assert!((want - f64::from(turned[i])).abs() < 3e-6, "{i} of {dim}, {pairs} pairs");
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    for isa in Isa::available() {
        for len in [1, 16, 21] {
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = noise(10, len);
                let up = x.clone();
                x[len - 1] = bad;
                let mut out = vec![0.0; len];
                isa.run(Gate { activation: Activation::Silu, gate: &x, up: &up, out: &mut out });
                assert!(!out[len - 1].is_finite());
                isa.run(AddNormed { x: &mut out, y: &x, weight: &vec![1.0; len], eps: 1e-5 });
                assert!(!out[len - 1].is_finite());
            }
            let mut capped = vec![f32::NAN; len];
            isa.run(SoftCap { x: &mut capped, cap: 5.0 });
            assert!(capped.iter().all(|x| x.is_nan()));
        }
        let mut heads = noise(11, 12);
        let before = bits(&heads);
        isa.run(TurnHeads { heads: &mut heads, dim: 4, norm: None, turns: (&[], &[]) });
        assert_eq!(bits(&heads), before);
    }
}
