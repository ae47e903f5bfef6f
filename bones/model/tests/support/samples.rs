//! Random models and adapters of a given description.

use super::packing::{Form, Matrix, Rng, Stored, image, vector};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tie_bones_model::description::Description;
use tie_bones_model::model::Model;
use tie_bones_model::table::Part;

/// A model as numbers.
#[derive(Clone)]
pub struct Sample {
    pub json: Value,
    pub matrices: BTreeMap<String, Matrix>,
    pub vectors: BTreeMap<String, Vec<f32>>,
}

/// An adapter as numbers: for each matrix that it changes, A and B.
#[derive(Clone)]
pub struct Adapter {
    pub name: String,
    pub pairs: BTreeMap<String, [Matrix; 2]>,
}

/// A small model: 4 query heads over 2 key heads, 4 layers, a vocabulary that does not fill its last panel.
pub fn tiny() -> Value {
    json!({
        "architecture": "test", "layout": "panels-1", "dtype": "f32", "hidden_size": 64, "intermediate_size": 96,
        "layer_count": 4, "query_heads": 4, "kv_heads": 2, "head_dim": 16, "vocab_size": 50, "context_length": 64,
        "norm_eps": 1e-5, "tied_embeddings": true, "activation": "silu", "qkv_bias": false, "output_bias": false,
        "mlp_bias": false, "qk_norm": false, "post_norms": false, "layer_pattern": ["full"],
        "attention": {"full": {"rope": {"theta": 10000.0, "rotary_dim": 16}}}
    })
}

/// [`tiny`] with other values for some keys.
pub fn changed(changes: Value) -> Value {
    let mut json = tiny();
    let Value::Object(changes) = changes else { panic!("changes are a table") };
    json.as_object_mut().unwrap().extend(changes);
    json
}

/// Every option of the family at once.
pub fn everything() -> Value {
    changed(json!({
        "tied_embeddings": false, "activation": "gelu_tanh", "embedding_scale": 8.0, "attention_scale": 0.3,
        "attention_softcap": 2.0, "logit_softcap": 3.0, "qkv_bias": true, "output_bias": true, "mlp_bias": true,
        "qk_norm": true, "post_norms": true, "layer_pattern": ["near", "near", "far", "bare"],
        "attention": {
            "near": {"window": 3, "rope": {"theta": 100.0, "rotary_dim": 8}},
            "far": {"rope": {"theta": 10000.0, "rotary_dim": 16, "scaling": {"kind": "linear", "factor": 4.0}}},
            "bare": {},
        }
    }))
}

impl Sample {
    /// Random weights, the matrices' forms taken in turn.
    pub fn new(json: Value, forms: &[Form]) -> Self {
        let mut sample = Self { json, matrices: BTreeMap::new(), vectors: BTreeMap::new() };
        let d = sample.description();
        let mut rng = Rng(7);
        let mut forms = forms.iter().copied().cycle();
        let mut matrix = |name: &str, shape: (usize, usize)| {
            let size = 1.5 / (shape.1 as f32).sqrt();
            let made = Matrix::random(name, forms.next().unwrap(), shape, size, &mut rng);
            sample.matrices.insert(name.to_owned(), made);
        };
        matrix("embed.weight", (d.vocab_size, d.hidden_size));
        if !d.tied_embeddings {
            matrix("lm_head.weight", (d.vocab_size, d.hidden_size));
        }
        for layer in 0..d.layer_count {
            for part in Part::ALL {
                matrix(&format!("layers.{layer}.{}.weight", part.stem()), part.shape(&d));
            }
        }
        for (name, len) in vectors(&d) {
            let base = if name.ends_with("bias") { 0.0 } else { 1.0 };
            sample.vectors.insert(name, (0..len).map(|_| base + 0.3 * rng.unit()).collect());
        }
        sample
    }

    pub fn description(&self) -> Description {
        Description::from_json(&self.json.to_string()).unwrap()
    }

    pub fn tensors(&self) -> Vec<Stored> {
        let matrices = self.matrices.values().flat_map(|matrix| matrix.stored.clone());
        matrices.chain(self.vectors.iter().map(|(name, values)| vector(name, values))).collect()
    }

    /// The model and the images that it lies in.
    pub fn model(&self, adapters: &[Adapter]) -> (Model, Vec<Vec<u8>>) {
        let images: Vec<Vec<u8>> =
            [image(&self.tensors())].into_iter().chain(adapters.iter().map(|a| image(&a.tensors()))).collect();
        let named = adapters.iter().zip(&images[1..]).map(|(adapter, image)| (adapter.name.as_str(), image.as_slice()));
        let model = Model::resolve(self.description(), &[&images[0]], &named.collect::<Vec<_>>()).unwrap();
        (model, images)
    }

    /// The model with an adapter's products added to its matrices, which become f32.
    pub fn merged(&self, adapter: &Adapter) -> Self {
        let mut sample = self.clone();
        for (stem, [a, b]) in &adapter.pairs {
            let name = format!("{stem}.weight");
            let Matrix { rows, cols, mut values, .. } = sample.matrices[&name].clone();
            for (at, value) in values.iter_mut().enumerate() {
                let (row, col) = (at / cols, at % cols);
                let terms = (0..a.rows).map(|r| f64::from(b.values[row * a.rows + r] * a.values[r * cols + col]));
                *value += terms.sum::<f64>() as f32;
            }
            sample.matrices.insert(name.clone(), Matrix::plain(&name, Form::F32, (rows, cols), values));
        }
        sample
    }

    /// A random adapter of some parts of every layer; the rank differs from part to part.
    pub fn adapter(&self, name: &str, seed: u64, form: Form, parts: &[Part]) -> Adapter {
        let (d, mut rng, mut pairs) = (self.description(), Rng(seed), BTreeMap::new());
        for layer in 0..d.layer_count {
            for (place, part) in parts.iter().enumerate() {
                let (stem, (rows, cols)) = (format!("layers.{layer}.{}", part.stem()), part.shape(&d));
                let rank = 32 * (1 + place % 2);
                let a = Matrix::random(&format!("{stem}.lora_a"), form, (rank, cols), 0.2, &mut rng);
                let b = Matrix::random(&format!("{stem}.lora_b"), form, (rows, rank), 0.2, &mut rng);
                pairs.insert(stem, [a, b]);
            }
        }
        Adapter { name: name.to_owned(), pairs }
    }
}

impl Adapter {
    pub fn tensors(&self) -> Vec<Stored> {
        self.pairs.values().flatten().flat_map(|matrix| matrix.stored.clone()).collect()
    }
}

fn vectors(d: &Description) -> Vec<(String, usize)> {
    let mut wanted = vec![("norm.weight".to_owned(), d.hidden_size)];
    for layer in 0..d.layer_count {
        let mut add = |name: &str, len: usize| wanted.push((format!("layers.{layer}.{name}"), len));
        let norms = [
            (true, d.hidden_size, ["attn_norm.weight", "mlp_norm.weight"]),
            (d.qk_norm, d.head_dim, ["attn.q_norm.weight", "attn.k_norm.weight"]),
            (d.post_norms, d.hidden_size, ["attn_post_norm.weight", "mlp_post_norm.weight"]),
        ];
        for (_, len, names) in norms.into_iter().filter(|norm| norm.0) {
            add(names[0], len);
            add(names[1], len);
        }
        let biased = [d.qkv_bias, d.qkv_bias, d.qkv_bias, d.output_bias, d.mlp_bias, d.mlp_bias, d.mlp_bias];
        for (part, _) in Part::ALL.iter().zip(biased).filter(|(_, biased)| *biased) {
            add(&format!("{}.bias", part.stem()), part.shape(d).0);
        }
    }
    wanted
}
