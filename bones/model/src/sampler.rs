//! Draws one token from one row of logits; the reference for every backend.

use crate::philox::uniform;
use crate::sampling::Sampling;
use std::cmp::Ordering;
use std::collections::HashMap;

/// Why a row has no token. Only that row is affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RowFault {
    /// A logit is NaN or +inf, or none that may be chosen is finite.
    #[error("logits not finite")]
    NotFinite,
    /// The mask forbids every token.
    #[error("no token allowed")]
    NothingAllowed,
}

/// A row's token. `logprobs` are of the model's own distribution, before mask, penalties and temperature: the sampled
/// token first, then the likeliest.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// Natural logarithms of probabilities.
    pub logprobs: Option<Vec<(u32, f32)>>,
}

#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    logit: f32,
    /// Probability relative to the likeliest.
    weight: f32,
}

/// Draws from `logits`, which it changes. `position` is the sampled token's place in its sequence.
pub fn draw(
    logits: &mut [f32],
    sampling: &Sampling,
    allowed: Option<&[u32]>,
    position: u32,
) -> Result<Drawn, RowFault> {
    let untouched = highest(logits)?;
    let original = sampling.logprobs.map(|count| (count, logits.to_vec()));
    if let Some(words) = allowed {
        mask(logits, words)?;
    }
    if sampling.penalises() {
        penalise(logits, sampling);
    }
    for &(id, bias) in &sampling.logit_bias {
        change(&mut logits[id as usize], |l| l + bias);
    }
    let touched = allowed.is_some() || sampling.penalises() || !sampling.logit_bias.is_empty();
    let max = if touched { highest(logits)? } else { untouched };
    let token = if is_greedy(logits, sampling.temperature) {
        first(logits, max)
    } else {
        pick(&candidates(logits, max, sampling), uniform(sampling.seed, sampling.choice_index, position))
    };
    let logprobs = original.map(|(count, logits)| logprobs(&logits, token, count));
    Ok(Drawn { token, logprobs })
}

/// The highest of logits that are all below infinity and none NaN, one at least being finite. By lanes, which the
/// compiler takes together.
fn highest(logits: &[f32]) -> Result<f32, RowFault> {
    let (mut lanes, mut fine) = ([f32::NEG_INFINITY; 16], [true; 16]);
    for chunk in logits.chunks(16) {
        for ((lane, fine), &logit) in lanes.iter_mut().zip(&mut fine).zip(chunk) {
            *lane = if logit > *lane { logit } else { *lane };
            *fine &= logit < f32::INFINITY;
        }
    }
    let max = lanes.into_iter().fold(f32::NEG_INFINITY, f32::max);
    if fine.contains(&false) || max == f32::NEG_INFINITY { Err(RowFault::NotFinite) } else { Ok(max) }
}

/// The first token with the highest logit.
fn first(logits: &[f32], max: f32) -> u32 {
    // All of a chunk is looked at, so that the compiler takes it together.
    let holds = |chunk: &[f32]| chunk.iter().filter(|&&l| l == max).count() > 0;
    let chunk = logits.chunks(64).position(holds).unwrap_or(0);
    (64 * chunk + logits[64 * chunk..].iter().position(|&l| l == max).unwrap_or(0)) as u32
}

fn mask(logits: &mut [f32], words: &[u32]) -> Result<(), RowFault> {
    let mut any = false;
    for (id, logit) in logits.iter_mut().enumerate() {
        if words[id / 32] >> (id % 32) & 1 == 1 {
            any = true;
        } else {
            *logit = f32::NEG_INFINITY;
        }
    }
    if any { Ok(()) } else { Err(RowFault::NothingAllowed) }
}

fn penalise(logits: &mut [f32], sampling: &Sampling) {
    let mut seen: HashMap<u32, u32> = HashMap::new();
    for (place, &id) in sampling.history.iter().enumerate() {
        *seen.entry(id).or_default() += u32::from(place >= sampling.prompt_len);
    }
    let repetition = sampling.repetition_penalty as f32;
    for (id, generated) in seen {
        let presence = if generated > 0 { sampling.presence_penalty } else { 0.0 };
        let subtract = (presence + sampling.frequency_penalty * f64::from(generated)) as f32;
        change(&mut logits[id as usize], |l| (if l > 0.0 { l / repetition } else { l * repetition }) - subtract);
    }
}

/// Changes a logit that may still be chosen; it stays finite, and one that is masked stays masked.
fn change(logit: &mut f32, by: impl Fn(f32) -> f32) {
    if logit.is_finite() {
        *logit = by(*logit).clamp(f32::MIN, f32::MAX);
    }
}

/// Temperature 0, or so small that scaled logits would overflow.
fn is_greedy(logits: &[f32], temperature: f64) -> bool {
    if temperature == 0.0 {
        return true;
    }
    let largest = logits.iter().filter(|l| l.is_finite()).fold(0.0_f32, |m, l| m.max(l.abs()));
    f64::from(largest) / temperature > f64::from(f32::MAX)
}

/// What temperature, top-k, top-p and min-p leave, likeliest first where an order was needed.
fn candidates(logits: &[f32], max: f32, sampling: &Sampling) -> Vec<Candidate> {
    let weight = |logit: f32| ((f64::from(logit) - f64::from(max)) / sampling.temperature) as f32;
    let mut kept: Vec<Candidate> = (0_u32..)
        .zip(logits)
        .filter(|(_, logit)| logit.is_finite())
        .map(|(id, &logit)| Candidate { id, logit, weight: weight(logit).exp() })
        .collect();
    if sampling.top_k > 0 && sampling.top_k < kept.len() {
        kept.select_nth_unstable_by(sampling.top_k - 1, likelier);
        kept.truncate(sampling.top_k);
        kept.sort_unstable_by(likelier);
    }
    if sampling.top_p < 1.0 {
        nucleus(&mut kept, sampling.top_p);
    }
    // The likeliest weighs exactly 1.
    kept.retain(|c| f64::from(c.weight) >= sampling.min_p);
    kept
}

fn likelier(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

/// Keeps the smallest set of likeliest tokens whose share reaches `top_p`; at least one.
fn nucleus(kept: &mut Vec<Candidate>, top_p: f64) {
    let total: f64 = kept.iter().map(|c| f64::from(c.weight)).sum();
    // Tokens below this weight have together less than the share that may be cut: they need no sorting.
    let floor = (1.0 - top_p) * total / kept.len() as f64;
    kept.retain(|c| f64::from(c.weight) >= floor);
    kept.sort_unstable_by(likelier);
    let mut share = 0.0;
    let reached = kept.iter().position(|c| {
        share += f64::from(c.weight);
        share >= top_p * total
    });
    kept.truncate(reached.map_or(kept.len(), |last| last + 1));
}

fn pick(kept: &[Candidate], uniform: f64) -> u32 {
    let total: f64 = kept.iter().map(|c| f64::from(c.weight)).sum();
    let mut below = 0.0;
    let mut last = 0;
    for candidate in kept.iter().filter(|c| c.weight > 0.0) {
        below += f64::from(candidate.weight);
        last = candidate.id;
        if uniform * total < below {
            break;
        }
    }
    last
}

fn logprobs(logits: &[f32], token: u32, count: usize) -> Vec<(u32, f32)> {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let total: f64 = logits.iter().map(|&l| (f64::from(l) - max).exp()).sum();
    let log = |logit: f32| (f64::from(logit) - max - total.ln()) as f32;
    let mut top: Vec<Candidate> =
        (0_u32..).zip(logits).map(|(id, &logit)| Candidate { id, logit, weight: 0.0 }).collect();
    let count = count.min(top.len());
    if count > 0 && count < top.len() {
        top.select_nth_unstable_by(count - 1, likelier);
    }
    top.truncate(count);
    top.sort_unstable_by(likelier);
    std::iter::once((token, log(logits[token as usize]))).chain(top.iter().map(|c| (c.id, log(c.logit)))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn token(logits: &[f32], sampling: &Sampling, allowed: Option<&[u32]>) -> Result<u32, RowFault> {
        draw(&mut logits.to_vec(), sampling, allowed, 3).map(|drawn| drawn.token)
    }

    fn warm(seed: u64) -> Sampling {
        Sampling { temperature: 1.0, seed, ..Sampling::default() }
    }

    /// Shares of tokens over many seeds.
    fn shares(logits: &[f32], change: impl Fn(&mut Sampling)) -> Vec<f64> {
        let mut counts = vec![0.0; logits.len()];
        for seed in 0..4000 {
            let mut sampling = warm(seed);
            change(&mut sampling);
            counts[token(logits, &sampling, None).unwrap() as usize] += 1.0 / 4000.0;
        }
        counts
    }

    fn near(got: &[f64], want: &[f64]) {
        assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 0.03), "{got:?} {want:?}");
    }

    #[test]
    fn rows_that_are_not_finite_are_refused() {
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(token(&[0.0, bad], &warm(1), None), Err(RowFault::NotFinite));
            assert_eq!(token(&[0.0, bad], &Sampling::default(), Some(&[1])), Err(RowFault::NotFinite));
        }
        assert_eq!(token(&[f32::NEG_INFINITY; 3], &warm(1), None), Err(RowFault::NotFinite));
        assert_eq!(token(&[f32::NEG_INFINITY, 1.0], &warm(1), Some(&[1])), Err(RowFault::NotFinite));
    }

    #[test]
    fn an_empty_mask_is_refused_even_with_bits_beyond_the_vocabulary() {
        assert_eq!(token(&[0.0, 1.0], &warm(1), Some(&[0])), Err(RowFault::NothingAllowed));
        assert_eq!(token(&[0.0, 1.0], &warm(1), Some(&[!3])), Err(RowFault::NothingAllowed));
    }

    #[test]
    fn argmax_takes_the_lowest_id_of_a_tie() {
        assert_eq!(token(&[1.0, 3.0, 3.0], &Sampling::default(), None), Ok(1));
    }

    #[test]
    fn tiny_temperatures_are_argmax() {
        for temperature in [1e-45, 1e-7, 1e-4] {
            let sampling = Sampling { temperature, ..warm(9) };
            assert_eq!(token(&[-1e3, 2.0, 1.0, 2.5], &sampling, None), Ok(3));
        }
        let sampling = Sampling { temperature: 1e-45, ..warm(9) };
        assert_eq!(token(&[1.0, 3.0, 3.0], &sampling, None), Ok(1));
    }

    #[test]
    fn huge_logits_stay_finite() {
        let sampling = Sampling { repetition_penalty: 0.01, history: vec![0, 1], ..warm(1) };
        assert!(token(&[f32::MAX, f32::MIN, 0.0], &sampling, None).is_ok());
        let sampling = Sampling { temperature: 100.0, ..warm(1) };
        assert_eq!(token(&[f32::MAX, f32::MIN], &sampling, None), Ok(0));
    }

    #[test]
    fn shares_follow_the_distribution() {
        let logits: Vec<f32> = [0.5_f32, 0.3, 0.15, 0.05].iter().map(|p| p.ln()).collect();
        near(&shares(&logits, |_| ()), &[0.5, 0.3, 0.15, 0.05]);
        near(&shares(&logits, |s| s.top_k = 2), &[0.625, 0.375, 0.0, 0.0]);
        near(&shares(&logits, |s| s.top_p = 0.79), &[0.625, 0.375, 0.0, 0.0]);
        near(&shares(&logits, |s| s.top_p = 0.81), &[0.526, 0.316, 0.158, 0.0]);
        near(&shares(&logits, |s| s.min_p = 0.25), &[0.526, 0.316, 0.158, 0.0]);
        near(&shares(&logits, |s| s.top_p = 1e-9), &[1.0, 0.0, 0.0, 0.0]);
        near(&shares(&logits, |s| s.temperature = 0.5), &[0.685, 0.247, 0.062, 0.007]);
        near(&shares(&logits, |s| s.logit_bias = vec![(3, 100.0)]), &[0.0, 0.0, 0.0, 1.0]);
        near(&shares(&logits, |s| s.temperature = 100.0), &[0.25, 0.25, 0.25, 0.25]);
    }

    #[test]
    fn penalties_look_where_they_should() {
        let history = vec![0, 1, 1];
        let base = Sampling { history, prompt_len: 1, ..Sampling::default() };
        let repeated = Sampling { repetition_penalty: 2.0, ..base.clone() };
        assert_eq!(token(&[4.0, 3.9, 2.1], &repeated, None), Ok(2));
        let present = Sampling { presence_penalty: 2.0, ..base.clone() };
        assert_eq!(token(&[4.0, 4.1, 0.0], &present, None), Ok(0));
        let frequent = Sampling { frequency_penalty: 1.0, ..base };
        assert_eq!(token(&[4.0, 6.1, 0.0], &frequent, None), Ok(1));
        assert_eq!(token(&[4.0, 5.9, 0.0], &frequent, None), Ok(0));
    }

    #[test]
    fn logprobs_are_of_the_unchanged_distribution() {
        let sampling = Sampling { logprobs: Some(2), logit_bias: vec![(2, 50.0)], ..Sampling::default() };
        let mut logits = [0.7_f32.ln(), 0.2_f32.ln(), 0.1_f32.ln()];
        let drawn = draw(&mut logits, &sampling, None, 0).unwrap();
        let found = drawn.logprobs.unwrap();
        let want = [(2, 0.1_f32), (0, 0.7), (1, 0.2)];
        assert_eq!(found.len(), 3);
        for (f, w) in found.iter().zip(want) {
            assert!(f.0 == w.0 && (f.1.exp() - w.1).abs() < 1e-6);
        }
        let none = Sampling { logprobs: Some(0), ..Sampling::default() };
        assert_eq!(draw(&mut [0.0, 1.0], &none, None, 0).unwrap().logprobs.unwrap().len(), 1);
    }

    proptest! {
        #[test]
        fn a_masked_token_is_never_drawn(
            logits in proptest::collection::vec(-50.0_f32..50.0, 40),
            words in any::<[u32; 2]>(),
            seed in any::<u64>(),
            temperature in prop_oneof![Just(0.0), Just(1e-7), 0.1..100.0],
            top_k in 0_usize..50,
            top_p in 0.001..1.0,
            min_p in 0.0..1.0,
        ) {
            let sampling = Sampling { temperature, top_p, top_k, min_p, seed, ..Sampling::default() };
            match token(&logits, &sampling, Some(&words)) {
                Ok(id) => prop_assert!(words[id as usize / 32] >> (id % 32) & 1 == 1),
                Err(fault) => {
                    prop_assert_eq!(fault, RowFault::NothingAllowed);
                    prop_assert!(words[0] == 0 && words[1].trailing_zeros() >= 8);
                }
            }
        }
    }
}
