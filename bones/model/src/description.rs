//! What a model is: the `[model]` table of a bundle, read strictly and bounded.

use serde::Deserialize;

/// The version of the weight layout that this crate reads.
pub const LAYOUT: &str = "rows-1";

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
        field: &'static str,
        /// The value found.
        value: String,
        /// What would be accepted.
        limit: String,
    },
}

/// A Llama-family decoder. All sizes are in elements, the context in tokens.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
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
    /// Whether q, k and v have biases.
    pub attention_bias: bool,
    /// Activation of the gate.
    pub activation: Activation,
    /// Rotary position embedding.
    pub rope: Rope,
}

/// Activation of the gated MLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Activation {
    /// x · sigmoid(x)
    Silu,
}

/// Rotary position embedding, half-split: dimension j turns with j + `rotary_dim` / 2.
#[derive(Clone, Debug, Deserialize)]
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
#[derive(Clone, Debug, Deserialize)]
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

    fn check(&self) -> Result<(), DescriptionError> {
        if self.layout != LAYOUT {
            return Err(refusal("layout", format!("{:.64?}", self.layout), format!("{LAYOUT:?}")));
        }
        within("hidden_size", self.hidden_size, 1, 1 << 16)?;
        within("intermediate_size", self.intermediate_size, 1, 1 << 18)?;
        within("layer_count", self.layer_count, 1, 1024)?;
        within("query_heads", self.query_heads, 1, 1024)?;
        within("kv_heads", self.kv_heads, 1, self.query_heads)?;
        within("head_dim", self.head_dim, 2, 1024)?;
        within("vocab_size", self.vocab_size, 1, 1 << 22)?;
        within("context_length", self.context_length, 1, 1 << 22)?;
        if self.query_heads % self.kv_heads != 0 {
            let limit = format!("a multiple of kv_heads, which is {}", self.kv_heads);
            return Err(refusal("query_heads", self.query_heads, limit));
        }
        real("norm_eps", f64::from(self.norm_eps), 0.0, 1.0)?;
        self.rope.check(self.head_dim)
    }
}

impl Rope {
    fn check(&self, head_dim: usize) -> Result<(), DescriptionError> {
        real("rope.theta", self.theta, 1.0, 1e12)?;
        within("rope.rotary_dim", self.rotary_dim, 2, head_dim)?;
        if self.rotary_dim % 2 != 0 {
            return Err(refusal("rope.rotary_dim", self.rotary_dim, "even".into()));
        }
        match self.scaling {
            Scaling::None {} => Ok(()),
            Scaling::Linear { factor } => real("rope.scaling.factor", factor, 1.0, 1e6),
            Scaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context_length } => {
                real("rope.scaling.factor", factor, 1.0, 1e6)?;
                real("rope.scaling.low_freq_factor", low_freq_factor, 1e-6, 1e6)?;
                real("rope.scaling.high_freq_factor", high_freq_factor, low_freq_factor, 1e6)?;
                if high_freq_factor <= low_freq_factor {
                    let limit = format!("greater than low_freq_factor, which is {low_freq_factor}");
                    return Err(refusal("rope.scaling.high_freq_factor", high_freq_factor, limit));
                }
                within("rope.scaling.original_context_length", original_context_length, 1, 1 << 22)
            }
            Scaling::Yarn { factor, original_context_length, beta_fast, beta_slow, attention_factor } => {
                real("rope.scaling.factor", factor, 1.0, 1e6)?;
                within("rope.scaling.original_context_length", original_context_length, 1, 1 << 22)?;
                real("rope.scaling.beta_slow", beta_slow, 1e-6, 1e6)?;
                real("rope.scaling.beta_fast", beta_fast, beta_slow, 1e6)?;
                real("rope.scaling.attention_factor", attention_factor.unwrap_or(1.0), 1e-6, 1e6)
            }
        }
    }
}

fn refusal(field: &'static str, value: impl std::fmt::Display, limit: String) -> DescriptionError {
    DescriptionError::OutOfRange { field, value: value.to_string(), limit }
}

fn within(field: &'static str, value: usize, low: usize, high: usize) -> Result<(), DescriptionError> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(refusal(field, value, format!("{low} to {high}"))) }
}

fn real(field: &'static str, value: f64, low: f64, high: f64) -> Result<(), DescriptionError> {
    if (low..=high).contains(&value) { Ok(()) } else { Err(refusal(field, value, format!("{low} to {high}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn tiny() -> Value {
        json!({
            "architecture": "llama", "layout": "rows-1", "dtype": "f32", "hidden_size": 64, "intermediate_size": 96,
            "layer_count": 2, "query_heads": 4, "kv_heads": 2, "head_dim": 16, "vocab_size": 100,
            "context_length": 128, "norm_eps": 1e-5, "tied_embeddings": true, "attention_bias": false,
            "activation": "silu", "rope": {"theta": 10000.0, "rotary_dim": 16}
        })
    }

    fn refused(path: &str, value: Value) -> String {
        let mut json = tiny();
        *json.pointer_mut(path).unwrap() = value;
        Description::from_json(&json.to_string()).unwrap_err().to_string()
    }

    #[test]
    fn unknown_keys_are_refused_at_every_level() {
        for path in ["", "/rope"] {
            let mut json = tiny();
            json.pointer_mut(path).unwrap()["surprise"] = json!(1);
            let error = Description::from_json(&json.to_string()).unwrap_err().to_string();
            assert!(error.contains("surprise"), "{error}");
        }
        for kind in [json!({"kind": "none", "factor": 2.0}), json!({"kind": "linear", "factor": 2.0, "beta": 1})] {
            let mut json = tiny();
            json["rope"]["scaling"] = kind;
            assert!(Description::from_json(&json.to_string()).is_err());
        }
    }

    #[test]
    fn values_out_of_range_are_refused_by_name_and_limit() {
        assert!(refused("/hidden_size", json!(0)).contains("hidden_size is 0, must be 1 to 65536"));
        assert!(refused("/query_heads", json!(3)).contains("query_heads is 3, must be a multiple of kv_heads"));
        assert!(refused("/kv_heads", json!(8)).contains("kv_heads is 8"));
        assert!(refused("/norm_eps", json!(-1.0)).contains("norm_eps"));
        assert!(refused("/rope/rotary_dim", json!(18)).contains("rope.rotary_dim is 18, must be 2 to 16"));
        assert!(refused("/rope/rotary_dim", json!(7)).contains("even"));
        assert!(refused("/rope/theta", json!(0.0)).contains("rope.theta"));
        assert!(refused("/layout", json!("rows-2")).contains("rows-2"));
        assert!(refused("/activation", json!("relu")).contains("relu"));
        assert!(refused("/layer_count", json!(18_446_744_073_709_551_615_u64)).contains("layer_count"));
        assert!(refused("/vocab_size", json!(-1)).contains("invalid value"));
    }

    #[test]
    fn every_scaling_is_read() {
        for scaling in [
            json!({"kind": "none"}),
            json!({"kind": "linear", "factor": 2.0}),
            json!({"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_context_length": 8192}),
            json!({"kind": "yarn", "factor": 4.0, "original_context_length": 4096, "beta_fast": 32.0,
                   "beta_slow": 1.0}),
        ] {
            let mut json = tiny();
            json["rope"]["scaling"] = scaling;
            Description::from_json(&json.to_string()).unwrap();
        }
    }
}
