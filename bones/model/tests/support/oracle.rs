//! The family's mathematics once more, in f64: one sequence, no cache, no ranks, no batch. Tests compare logits with it.

use super::samples::Sample;
use tie_bones_model::description::{Activation, Description};
use tie_bones_model::rope::RopeTable;

type Rows = Vec<Vec<f64>>;

/// Logits of every position of a sequence.
pub fn logits(sample: &Sample, tokens: &[i32]) -> Rows {
    let d = sample.description();
    let scaled = |&x: &f32| f64::from(x) * f64::from(d.embedding_scale);
    let embed = &sample.matrices["embed.weight"];
    let row = |&t: &i32| embed.values[t as usize * embed.cols..][..embed.cols].iter().map(scaled).collect();
    let mut x: Rows = tokens.iter().map(row).collect();
    for layer in 0..d.layer_count {
        let at = |name: &str| format!("layers.{layer}.{name}");
        let normed = norm(&x, sample, &at("attn_norm"), d.norm_eps);
        let attended = attention(sample, &d, layer, &normed);
        merge(&mut x, sample, &d, (&linear(&attended, sample, &at("attn.o")), &at("attn_post_norm")));
        let normed = norm(&x, sample, &at("mlp_norm"), d.norm_eps);
        let (gate, up) = (linear(&normed, sample, &at("mlp.gate")), linear(&normed, sample, &at("mlp.up")));
        let pairs =
            gate.iter().zip(&up).map(|(g, u)| g.iter().zip(u).map(|(g, u)| act(*g, d.activation) * u).collect());
        let gated: Rows = pairs.collect();
        merge(&mut x, sample, &d, (&linear(&gated, sample, &at("mlp.down")), &at("mlp_post_norm")));
    }
    let head = if d.tied_embeddings { "embed" } else { "lm_head" };
    let mut logits = linear(&norm(&x, sample, "norm", d.norm_eps), sample, head);
    logits.iter_mut().flatten().for_each(|l| *l = capped(*l, d.logit_softcap));
    logits
}

fn merge(x: &mut Rows, sample: &Sample, d: &Description, (y, post_norm): (&Rows, &str)) {
    let normed = d.post_norms.then(|| norm(y, sample, post_norm, d.norm_eps));
    x.iter_mut().flatten().zip(normed.as_ref().unwrap_or(y).iter().flatten()).for_each(|(x, y)| *x += y);
}

fn attention(sample: &Sample, d: &Description, layer: usize, x: &Rows) -> Rows {
    let part = |name: &str| linear(x, sample, &format!("layers.{layer}.attn.{name}"));
    let (mut q, mut k, v) = (part("q"), part("k"), part("v"));
    let kind = d.kind(layer).1;
    for (rows, name) in [(&mut q, "q_norm"), (&mut k, "k_norm")] {
        for (position, head) in
            rows.iter_mut().enumerate().flat_map(|(p, r)| r.chunks_mut(d.head_dim).map(move |h| (p, h)))
        {
            if d.qk_norm {
                let normed = norm(&vec![head.to_vec()], sample, &format!("layers.{layer}.attn.{name}"), d.norm_eps);
                head.copy_from_slice(&normed[0]);
            }
            kind.rope.iter().for_each(|rope| turn(head, &RopeTable::new(rope), position));
        }
    }
    let scale = d.attention_scale.map_or((d.head_dim as f64).powf(-0.5), f64::from);
    let head = |i: usize, head: usize| -> Vec<f64> {
        let kv = head / (d.query_heads / d.kv_heads) * d.head_dim;
        let seen: Vec<usize> = (0..=i).filter(|j| kind.window.is_none_or(|window| i - j < window)).collect();
        let q = &q[i][head * d.head_dim..][..d.head_dim];
        let score = |j: &usize| {
            capped(scale * q.iter().zip(&k[*j][kv..]).map(|(q, k)| q * k).sum::<f64>(), d.attention_softcap)
        };
        let weights: Vec<f64> = seen.iter().map(|j| score(j).exp()).collect();
        let sum: f64 = weights.iter().sum();
        (0..d.head_dim).map(|e| seen.iter().zip(&weights).map(|(j, w)| w * v[*j][kv + e]).sum::<f64>() / sum).collect()
    };
    (0..x.len()).map(|i| (0..d.query_heads).flat_map(|h| head(i, h)).collect()).collect()
}

fn turn(head: &mut [f64], table: &RopeTable, position: usize) {
    let pairs = table.frequencies.len();
    for (j, frequency) in table.frequencies.iter().enumerate() {
        // The product is rounded to f32, as models are trained with.
        let angle = f64::from(position as f32 * frequency);
        let (a, b) = (head[j], head[j + pairs]);
        let factor = f64::from(table.attention_factor);
        head[j] = (a * angle.cos() - b * angle.sin()) * factor;
        head[j + pairs] = (b * angle.cos() + a * angle.sin()) * factor;
    }
}

fn norm(x: &Rows, sample: &Sample, name: &str, eps: f32) -> Rows {
    let weight = &sample.vectors[&format!("{name}.weight")];
    let row = |row: &Vec<f64>| {
        let root = (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + f64::from(eps)).sqrt();
        row.iter().zip(weight).map(|(x, w)| x / root * f64::from(*w)).collect()
    };
    x.iter().map(row).collect()
}

fn linear(x: &Rows, sample: &Sample, name: &str) -> Rows {
    let matrix = &sample.matrices[&format!("{name}.weight")];
    let bias = sample.vectors.get(&format!("{name}.bias"));
    let output = |row: &Vec<f64>, i: usize| {
        let w = &matrix.values[i * matrix.cols..(i + 1) * matrix.cols];
        row.iter().zip(w).map(|(x, w)| x * f64::from(*w)).sum::<f64>() + bias.map_or(0.0, |bias| f64::from(bias[i]))
    };
    x.iter().map(|row| (0..matrix.rows).map(|i| output(row, i)).collect()).collect()
}

fn act(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh())
        }
    }
}

fn capped(x: f64, cap: Option<f32>) -> f64 {
    cap.map_or(x, |cap| f64::from(cap) * (x / f64::from(cap)).tanh())
}
