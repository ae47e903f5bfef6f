//! Attention of the naive backend, token by token and head by head.

use super::arithmetic::{dot, norm, softmax, turn};
use super::values::{Cache, Tensor};
use tie_bones_model::backend::{Attention, Heads};
use tie_bones_model::batch::StepPlan;
use tie_bones_model::rope::RopeTable;

pub fn place(
    (plan, ropes): (&StepPlan, &[RopeTable]),
    layer: usize,
    (heads, how): (Heads, &Attention),
    norms: Option<(&[Vec<f32>; 2], f32)>,
    qkv: &mut Tensor,
    cache: &mut Cache,
) {
    for (row, r) in plan.rows.iter().enumerate() {
        for token in r.first_token..r.first_token + r.query_len {
            let position = plan.positions[token];
            let parts = &mut qkv.data[token * qkv.width..][..qkv.width];
            let (turning, v) = parts.split_at_mut((heads.query + heads.kv) * heads.dim);
            for (index, head) in turning.chunks_exact_mut(heads.dim).enumerate() {
                if let Some((weights, eps)) = norms {
                    head.copy_from_slice(&norm(head, &weights[usize::from(index >= heads.query)], eps));
                }
                how.rope.into_iter().for_each(|table| turn(head, &ropes[table], position));
            }
            let k = turning[heads.query * heads.dim..].chunks_exact(heads.dim);
            for (head, (k, v)) in k.zip(v.chunks_exact(heads.dim)).enumerate() {
                let at = cache.place(plan, row, position as usize, (layer, head));
                cache.data[at..at + 2 * heads.dim].copy_from_slice(&[k, v].concat());
            }
        }
    }
}

pub fn attend(
    plan: &StepPlan,
    layer: usize,
    (heads, how): (Heads, &Attention),
    (qkv, cache): (&Tensor, &Cache),
    out: &mut Tensor,
) {
    let dim = heads.dim;
    let head_out = |row: usize, token: usize, head: usize| {
        let end = plan.positions[token] as usize + 1;
        let seen = end.saturating_sub(how.window.unwrap_or(end))..end;
        let at = |position| cache.place(plan, row, position, (layer, head * heads.kv / heads.query));
        let q = &qkv.data[token * qkv.width + head * dim..][..dim];
        let score = |position| {
            let score = dot(q, &cache.data[at(position)..][..dim]) * how.scale;
            how.softcap.map_or(score, |cap| cap * (score / cap).tanh())
        };
        let mut weights: Vec<f32> = seen.clone().map(score).collect();
        softmax(&mut weights);
        let value = |i: usize| seen.clone().zip(&weights).map(|(p, w)| w * cache.data[at(p) + dim + i]).sum::<f32>();
        (0..dim).map(value).collect::<Vec<f32>>()
    };
    let rows = plan
        .rows
        .iter()
        .enumerate()
        .flat_map(|(row, r)| (r.first_token..r.first_token + r.query_len).map(move |token| (row, token)));
    out.set(rows.map(|(row, token)| (0..heads.query).flat_map(|head| head_out(row, token, head)).collect()));
}
