//! Frequencies of the rotary position embedding, and which layers turn by which.

use crate::backend::Attention;
use crate::description::Description;
use crate::kinds::{Rope, Scaling};
use std::f64::consts::TAU;

/// Angle per token of each rotating pair, and what cosine and sine are multiplied by.
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// Radians per position, one for each of `rotary_dim` / 2 pairs.
    pub frequencies: Vec<f32>,
    /// Multiplies cosine and sine (yarn; otherwise 1).
    pub attention_factor: f32,
}

impl RopeTable {
    /// The table that a description asks for.
    pub fn new(rope: &Rope) -> Self {
        let plain = plain_frequencies(rope);
        let (frequencies, attention_factor) = match rope.scaling {
            Scaling::None {} => (plain, 1.0),
            Scaling::Linear { factor } => (plain.iter().map(|f| f / factor).collect(), 1.0),
            Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length } => {
                let turns = |f: f64| original_context_length as f64 * f / TAU;
                let blend =
                    |f: f64| ((turns(f) - low_freq_factor) / (high_freq_factor - low_freq_factor)).clamp(0.0, 1.0);
                (plain.iter().map(|&f| f / factor + blend(f) * (f - f / factor)).collect(), 1.0)
            }
            Scaling::Yarn { factor, original_context_length, beta_fast, beta_slow, attention_factor } => {
                let (low, high) = yarn_band(rope, original_context_length as f64, beta_fast, beta_slow);
                let kept = |i: usize| 1.0 - ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                let scaled = plain.iter().enumerate().map(|(i, &f)| f / factor + kept(i) * (f - f / factor)).collect();
                (scaled, attention_factor.unwrap_or(0.1 * factor.ln() + 1.0))
            }
        };
        let frequencies = frequencies.into_iter().map(|f: f64| f as f32).collect();
        Self { frequencies, attention_factor: attention_factor as f32 }
    }
}

/// The tables of a model, one for each kind of attention that turns, in the order of the kinds' names.
pub fn tables(description: &Description) -> Vec<RopeTable> {
    description.attention.values().filter_map(|kind| kind.rope.as_ref()).map(RopeTable::new).collect()
}

/// How a layer attends; its table is counted as in [`tables`].
pub fn attention(description: &Description, layer: usize) -> Attention {
    let (name, kind) = description.kind(layer);
    let before = description.attention.iter().take_while(|(other, _)| other.as_str() != name);
    let tables_before = before.filter(|(_, kind)| kind.rope.is_some()).count();
    Attention {
        scale: description.attention_scale.unwrap_or_else(|| (description.head_dim as f32).powf(-0.5)),
        softcap: description.attention_softcap,
        window: kind.window,
        rope: kind.rope.is_some().then_some(tables_before),
    }
}

fn plain_frequencies(rope: &Rope) -> Vec<f64> {
    let pairs = rope.rotary_dim / 2;
    (0..pairs).map(|i| rope.theta.powf(-(2.0 * i as f64) / rope.rotary_dim as f64)).collect()
}

/// The pairs between which yarn blends from kept to divided.
fn yarn_band(rope: &Rope, context: f64, beta_fast: f64, beta_slow: f64) -> (f64, f64) {
    let dim = rope.rotary_dim as f64;
    let pair_with_turns = |turns: f64| dim * (context / (turns * TAU)).ln() / (2.0 * rope.theta.ln());
    let low = pair_with_turns(beta_fast).floor().max(0.0);
    let high = pair_with_turns(beta_slow).ceil().min(dim - 1.0);
    // A band of no width would divide by zero.
    if low == high { (low, high + 0.001) } else { (low, high) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rope(scaling: Scaling) -> Rope {
        Rope { theta: 10000.0, rotary_dim: 8, scaling }
    }

    #[test]
    fn plain_and_linear_frequencies() {
        let plain = RopeTable::new(&rope(Scaling::None {})).frequencies;
        assert_eq!(plain, [1.0, 0.1, 0.01, 0.001]);
        let halved = RopeTable::new(&rope(Scaling::Linear { factor: 2.0 })).frequencies;
        assert_eq!(halved, [0.5, 0.05, 0.005, 0.0005]);
    }

    #[test]
    fn llama3_keeps_short_wavelengths_and_divides_long_ones() {
        let scaling =
            Scaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_context_length: 512 };
        let table = RopeTable::new(&rope(scaling));
        assert_eq!(table.frequencies[0], 1.0);
        assert_eq!(table.frequencies[1], 0.1);
        assert_eq!(table.frequencies[2], 0.00125);
        assert_eq!(table.frequencies[3], 0.000_125);
    }

    #[test]
    fn yarn_scales_attention_and_blends() {
        let scaling = Scaling::Yarn {
            factor: 4.0,
            original_context_length: 64,
            beta_fast: 32.0,
            beta_slow: 1.0,
            attention_factor: None,
        };
        let table = RopeTable::new(&rope(scaling));
        assert!((table.attention_factor - 1.138_629_4).abs() < 1e-6);
        // low = 0 and high = ceil(1.008) = 2: pair 1 lies half-way.
        let expected = [1.0, 0.0625, 0.0025, 0.00025];
        for (got, want) in table.frequencies.iter().zip(expected) {
            assert!((got - want).abs() < 1e-7, "{got} {want}");
        }
    }
}
