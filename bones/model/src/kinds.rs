//! How layers attend, as the description says it: windows and rotary embeddings by name of kind.

use crate::description::{DescriptionError, real, refusal, within};
use crate::safetensors::shown;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt;

/// Most kinds of attention in one model.
pub const MAX_KINDS: usize = 8;
/// Longest context, in tokens.
pub const MAX_CONTEXT: usize = 1 << 22;

/// One kind of attention.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kind {
    /// Key j is visible to query i when i − j < window; all where absent.
    #[serde(default)]
    pub window: Option<usize>,
    /// Rotary position embedding; none where absent.
    #[serde(default)]
    pub rope: Option<Rope>,
}

/// Rotary position embedding, half-split: dimension j turns with j + `rotary_dim` / 2.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rope {
    /// Base of the frequencies.
    pub theta: f64,
    /// Dimensions of a head that turn; the rest pass.
    pub rotary_dim: usize,
    /// How the frequencies are stretched for longer contexts.
    #[serde(default = "unscaled")]
    pub scaling: Scaling,
}

fn unscaled() -> Scaling {
    Scaling::None {}
}

/// Stretching of the rotary frequencies.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Scaling {
    /// As trained.
    None {},
    /// Every frequency divided by `factor`.
    Linear {
        /// Stretch.
        factor: f64,
    },
    /// Long wavelengths divided, short ones kept, the band between blended.
    Llama3 {
        /// Stretch.
        factor: f64,
        /// Below this many turns over the original context: divided.
        low_freq_factor: f64,
        /// Above this many turns: kept.
        high_freq_factor: f64,
        /// Context in tokens that the model was trained on.
        original_context_length: usize,
    },
    /// NTK by parts, with an attention factor.
    Yarn {
        /// Stretch.
        factor: f64,
        /// Context in tokens that the model was trained on.
        original_context_length: usize,
        /// Turns above which a dimension is kept.
        beta_fast: f64,
        /// Turns below which a dimension is divided.
        beta_slow: f64,
        /// Multiplies cosine and sine; 0.1 ln(factor) + 1 when absent.
        #[serde(default)]
        attention_factor: Option<f64>,
    },
}

/// Kinds by name, each once.
pub type Kinds = BTreeMap<String, Kind>;

/// Refuses a pattern or kinds that do not fit each other or the model.
pub fn check(kinds: &Kinds, pattern: &[String], layers: usize, head_dim: usize) -> Result<(), DescriptionError> {
    within("number of kinds of attention", kinds.len(), 1, MAX_KINDS)?;
    within("length of layer_pattern", pattern.len(), 1, layers)?;
    if let Some(name) = pattern.iter().find(|name| !kinds.contains_key(*name)) {
        let limit =
            format!("of the kinds of attention: {}", kinds.keys().map(|k| shown(k)).collect::<Vec<_>>().join(", "));
        return Err(refusal("layer_pattern", shown(name), limit));
    }
    for (name, kind) in kinds {
        if !is_kind_name(name) {
            return Err(refusal("attention", shown(name), "named [a-z][a-z0-9_]{0,31}"));
        }
        if !pattern.contains(name) {
            return Err(refusal("attention", name, "used by layer_pattern"));
        }
        within(format!("attention.{name}.window"), kind.window.unwrap_or(1), 1, MAX_CONTEXT)?;
        if let Some(rope) = &kind.rope {
            rope.check(&format!("attention.{name}.rope"), head_dim)?;
        }
    }
    Ok(())
}

fn is_kind_name(name: &str) -> bool {
    let is_tail = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    name.len() <= 32 && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(is_tail)
}

impl Rope {
    fn check(&self, path: &str, head_dim: usize) -> Result<(), DescriptionError> {
        real(format!("{path}.theta"), self.theta, 1.0, 1e12)?;
        within(format!("{path}.rotary_dim"), self.rotary_dim, 2, head_dim)?;
        if self.rotary_dim % 2 != 0 {
            return Err(refusal(format!("{path}.rotary_dim"), self.rotary_dim, "even"));
        }
        self.scaling.check(|key| format!("{path}.scaling.{key}"))
    }
}

impl Scaling {
    fn check(&self, at: impl Fn(&str) -> String) -> Result<(), DescriptionError> {
        match *self {
            Self::None {} => Ok(()),
            Self::Linear { factor } => real(at("factor"), factor, 1.0, 1e6),
            Self::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length } => {
                real(at("factor"), factor, 1.0, 1e6)?;
                real(at("low_freq_factor"), low_freq_factor, 1e-6, 1e6)?;
                real(at("high_freq_factor"), high_freq_factor, low_freq_factor, 1e6)?;
                if high_freq_factor <= low_freq_factor {
                    let limit = format!("greater than low_freq_factor, which is {low_freq_factor}");
                    return Err(refusal(at("high_freq_factor"), high_freq_factor, limit));
                }
                within(at("original_context_length"), original_context_length, 1, MAX_CONTEXT)
            }
            Self::Yarn { factor, original_context_length, beta_fast, beta_slow, attention_factor } => {
                real(at("factor"), factor, 1.0, 1e6)?;
                within(at("original_context_length"), original_context_length, 1, MAX_CONTEXT)?;
                real(at("beta_slow"), beta_slow, 1e-6, 1e6)?;
                real(at("beta_fast"), beta_fast, beta_slow, 1e6)?;
                real(at("attention_factor"), attention_factor.unwrap_or(1.0), 1e-6, 1e6)
            }
        }
    }
}

/// Reads kinds; a name that occurs twice is refused rather than overwritten.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kinds, D::Error> {
    struct KindsVisitor;
    impl<'de> Visitor<'de> for KindsVisitor {
        type Value = Kinds;

        fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
            f.write_str("a table of kinds of attention")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kinds, A::Error> {
            let mut kinds = Kinds::new();
            while let Some((name, kind)) = map.next_entry::<String, Kind>()? {
                let message = format!("attention: {} occurs twice", shown(&name));
                if kinds.insert(name, kind).is_some() {
                    return Err(A::Error::custom(message));
                }
            }
            Ok(kinds)
        }
    }
    deserializer.deserialize_map(KindsVisitor)
}
