//! What a model is: the `[model]` table of a bundle, read strictly and bounded.

use crate::kinds::{self, Kind, Kinds, MAX_CONTEXT};
use serde::Deserialize;
use std::fmt::Display;

/// The version of the weight layout that this crate reads.
pub const LAYOUT: &str = "panels-1";

/// Why a description was refused.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// Not JSON, a missing or unknown key, or a value of the wrong type.
    #[error("model description: {0}")]
    Json(#[from] serde_json::Error),
    /// A value outside what Bones executes.
    #[error("model description: {field} is {value}, must be {limit}")]
    OutOfRange {
        /// Path of the field.
        field: String,
        /// The value found.
        value: String,
        /// What would be accepted.
        limit: String,
    },
}

/// A decoder. All sizes are in elements, the context in tokens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(clippy::struct_excessive_bools, reason = "each is a key of the description")]
pub struct Description {
    /// Family that the weights came from; informative.
    pub architecture: String,
    /// Version of the weight layout, [`LAYOUT`].
    pub layout: String,
    /// Type of most linear weights; informative, the tensors decide.
    pub dtype: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the gated MLP.
    pub intermediate_size: usize,
    /// Number of decoder layers.
    pub layer_count: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub query_heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements of one head.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest sequence, prompt and completion together.
    pub context_length: usize,
    /// Added to the mean square before its root is taken.
    pub norm_eps: f32,
    /// Whether the embedding doubles as output head.
    pub tied_embeddings: bool,
    /// Activation of the gate.
    pub activation: Activation,
    /// Multiplies embedded rows.
    #[serde(default = "one")]
    pub embedding_scale: f32,
    /// Multiplies q · k; `head_dim`^-½ where absent.
    #[serde(default)]
    pub attention_scale: Option<f32>,
    /// s = cap · tanh(s / cap) on attention scores.
    #[serde(default)]
    pub attention_softcap: Option<f32>,
    /// The same on logits.
    #[serde(default)]
    pub logit_softcap: Option<f32>,
    /// Whether q, k and v have biases.
    pub qkv_bias: bool,
    /// Whether attention's output projection has a bias.
    pub output_bias: bool,
    /// Whether gate, up and down have biases.
    pub mlp_bias: bool,
    /// Whether each head of q and k is normed before it turns.
    pub qk_norm: bool,
    /// Whether the outputs of attention and MLP are normed before they are added.
    pub post_norms: bool,
    /// Kinds of layers, repeated over the layers.
    pub layer_pattern: Vec<String>,
    /// The kinds.
    #[serde(deserialize_with = "kinds::deserialize")]
    pub attention: Kinds,
}

/// Activation of the gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// x · sigmoid(x)
    Silu,
    /// ½ x (1 + tanh(√(2 / π) (x + 0.044715 x³)))
    GeluTanh,
}

fn one() -> f32 {
    1.0
}

impl Description {
    /// Reads and checks a description.
    pub fn from_json(text: &str) -> Result<Self, DescriptionError> {
        let description: Self = serde_json::from_str(text)?;
        description.check()?;
        Ok(description)
    }

    /// Elements of all query heads of a token.
    pub fn query_width(&self) -> usize {
        self.query_heads * self.head_dim
    }

    /// Elements of all key (or value) heads of a token.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Name and kind of a layer's attention.
    pub fn kind(&self, layer: usize) -> (&str, &Kind) {
        let name = &self.layer_pattern[layer % self.layer_pattern.len()];
        (name, &self.attention[name])
    }

    fn check(&self) -> Result<(), DescriptionError> {
        if self.layout != LAYOUT {
            let limit = format!("{LAYOUT:?}: import the model again");
            return Err(refusal("layout", format!("{:.64?}", self.layout), limit));
        }
        within("hidden_size", self.hidden_size, 1, 1 << 16)?;
        within("intermediate_size", self.intermediate_size, 1, 1 << 18)?;
        within("layer_count", self.layer_count, 1, 1024)?;
        within("query_heads", self.query_heads, 1, 1024)?;
        within("kv_heads", self.kv_heads, 1, self.query_heads)?;
        within("head_dim", self.head_dim, 2, 1024)?;
        within("vocab_size", self.vocab_size, 1, 1 << 22)?;
        within("context_length", self.context_length, 1, MAX_CONTEXT)?;
        if self.query_heads % self.kv_heads != 0 {
            let limit = format!("a multiple of kv_heads, which is {}", self.kv_heads);
            return Err(refusal("query_heads", self.query_heads, limit));
        }
        real("norm_eps", self.norm_eps, 0.0, 1.0)?;
        let factors = [
            ("embedding_scale", Some(self.embedding_scale)),
            ("attention_scale", self.attention_scale),
            ("attention_softcap", self.attention_softcap),
            ("logit_softcap", self.logit_softcap),
        ];
        for (field, factor) in factors {
            real(field, factor.unwrap_or(1.0), 1e-6, 1e6)?;
        }
        kinds::check(&self.attention, &self.layer_pattern, self.layer_count, self.head_dim)
    }
}

pub(crate) fn refusal(field: impl Into<String>, value: impl Display, limit: impl Into<String>) -> DescriptionError {
    DescriptionError::OutOfRange { field: field.into(), value: value.to_string(), limit: limit.into() }
}

pub(crate) fn within(field: impl Into<String>, value: usize, low: usize, high: usize) -> Result<(), DescriptionError> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(refusal(field, value, format!("{low} to {high}"))) }
}

/// Compares in the number's own precision: a limit as f32 is within the limits.
pub(crate) fn real<N: PartialOrd + Display + Copy>(
    field: impl Into<String>,
    value: N,
    low: N,
    high: N,
) -> Result<(), DescriptionError> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(refusal(field, value, format!("{low} to {high}"))) }
}
