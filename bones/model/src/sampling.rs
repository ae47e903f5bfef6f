//! What one sequence asks of the sampler, checked where it enters.

/// A parameter outside its range. Names the field and the limit, never the value: it is part of a request.
#[derive(Debug, thiserror::Error)]
#[error("sampling.{field} must be {limit}")]
pub struct SamplingError {
    field: &'static str,
    limit: String,
}

/// Sampling parameters of one sequence, applied in the order mask, penalties, logit bias, temperature, top-k, top-p,
/// min-p, draw.
#[derive(Clone, Debug)]
pub struct Sampling {
    /// 0 to 100; 0 is argmax, the lowest id winning a tie.
    pub temperature: f64,
    /// Above 0, up to 1: the smallest set of likeliest tokens with this share is kept.
    pub top_p: f64,
    /// Number of likeliest tokens kept; 0 is off.
    pub top_k: usize,
    /// 0 to 1: tokens less likely than this share of the likeliest are dropped.
    pub min_p: f64,
    /// Divides positive and multiplies negative logits of tokens seen in prompt or answer; 1 is off.
    pub repetition_penalty: f64,
    /// Subtracted once from tokens seen in the answer.
    pub presence_penalty: f64,
    /// Subtracted for each occurrence in the answer.
    pub frequency_penalty: f64,
    /// Key of the random numbers.
    pub seed: u64,
    /// Which of the request's choices this sequence is; part of the random numbers' counter.
    pub choice_index: u32,
    /// Added to single logits.
    pub logit_bias: Vec<(u32, f32)>,
    /// Prompt and answer so far, for the penalties; may be empty when they are off.
    pub history: Vec<u32>,
    /// How many tokens of `history` are prompt.
    pub prompt_len: usize,
    /// How many of the likeliest tokens to report beside the sampled one; `None` reports nothing.
    pub logprobs: Option<usize>,
}

/// Most alternatives that a row may report.
pub const MAX_LOGPROBS: usize = 20;

impl Default for Sampling {
    /// Argmax and nothing else.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
            choice_index: 0,
            logit_bias: Vec::new(),
            history: Vec::new(),
            prompt_len: 0,
            logprobs: None,
        }
    }
}

impl Sampling {
    /// Refuses what is out of range or not a number.
    pub fn check(&self) -> Result<(), SamplingError> {
        within("temperature", self.temperature, 0.0, 100.0)?;
        within("top_p", self.top_p, 0.0, 1.0)?;
        if self.top_p == 0.0 {
            return Err(refusal("top_p", "greater than 0"));
        }
        within("min_p", self.min_p, 0.0, 1.0)?;
        within("repetition_penalty", self.repetition_penalty, 0.01, 100.0)?;
        within("presence_penalty", self.presence_penalty, -100.0, 100.0)?;
        within("frequency_penalty", self.frequency_penalty, -100.0, 100.0)?;
        for &(_, bias) in &self.logit_bias {
            within("logit_bias", f64::from(bias), -100.0, 100.0)?;
        }
        if self.prompt_len > self.history.len() {
            return Err(refusal("prompt_len", format!("at most the length of history, {}", self.history.len())));
        }
        if self.logprobs.is_some_and(|n| n > MAX_LOGPROBS) {
            return Err(refusal("logprobs", format!("at most {MAX_LOGPROBS}")));
        }
        Ok(())
    }

    /// Whether every id lies in a vocabulary of this size.
    pub fn fits(&self, vocab_size: usize) -> Result<(), SamplingError> {
        let outside = |id: u32| id as usize >= vocab_size;
        if self.history.iter().any(|&id| outside(id)) {
            return Err(refusal("history", format!("ids below {vocab_size}")));
        }
        if self.logit_bias.iter().any(|&(id, _)| outside(id)) {
            return Err(refusal("logit_bias", format!("ids below {vocab_size}")));
        }
        Ok(())
    }

    /// Whether penalties change anything.
    pub fn penalises(&self) -> bool {
        self.repetition_penalty != 1.0 || self.presence_penalty != 0.0 || self.frequency_penalty != 0.0
    }
}

fn refusal(field: &'static str, limit: impl Into<String>) -> SamplingError {
    SamplingError { field, limit: limit.into() }
}

fn within(field: &'static str, value: f64, low: f64, high: f64) -> Result<(), SamplingError> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(refusal(field, format!("{low} to {high}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn out_of_range_and_not_a_number_are_refused_by_field_and_limit() {
        type Change = fn(&mut Sampling, f64);
        let fields: [(&str, Change, f64, f64); 6] = [
            ("temperature", |s, v| s.temperature = v, -0.1, 100.1),
            ("top_p", |s, v| s.top_p = v, 0.0, 1.1),
            ("min_p", |s, v| s.min_p = v, -0.1, 1.1),
            ("repetition_penalty", |s, v| s.repetition_penalty = v, 0.0, 101.0),
            ("presence_penalty", |s, v| s.presence_penalty = v, -101.0, 101.0),
            ("frequency_penalty", |s, v| s.frequency_penalty = v, -101.0, 101.0),
        ];
        for (name, change, low, high) in fields {
            for value in [low, high, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let mut sampling = Sampling::default();
                change(&mut sampling, value);
                let error = sampling.check().unwrap_err().to_string();
                assert!(error.starts_with(&format!("sampling.{name} must be ")), "{error}");
            }
        }
        assert!(Sampling { prompt_len: 1, ..Sampling::default() }.check().is_err());
        assert!(Sampling { logprobs: Some(21), ..Sampling::default() }.check().is_err());
        assert!(Sampling { logit_bias: vec![(0, f32::NAN)], ..Sampling::default() }.check().is_err());
        assert!(Sampling { logit_bias: vec![(9, 1.0)], ..Sampling::default() }.fits(9).is_err());
        assert!(Sampling { history: vec![9], ..Sampling::default() }.fits(9).is_err());
    }
}
